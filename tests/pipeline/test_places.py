"""A place that is nearly a URL is refused with the spelling that is meant; a folder is a folder."""

from __future__ import annotations

import pytest

from pipeline.places import check_place
from pipeline.storage import Storage, StorageError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3:/x", "write s3://x"),
        ("s3:x/y", "write s3://x/y"),
        ("s3//x", "write s3://x"),
        ("S3://x", "write s3://x"),
        ("s3a:/x", "write s3a://x"),
        ("s3:///x/y", "names no bucket; write s3://x/y"),
        ("s3://", "names no bucket"),
        ("gs:/x", "write gs://x"),
        ("file://tmp/x", "write file:///tmp/x"),
        ("file:/tmp/x", "write /tmp/x"),
        ("file:tmp", "write /tmp"),
        ("http://x", "neither written nor listed"),
        ("https://minio:9000/bucket", "AWS_ENDPOINT_URL"),
        ("minio:/bucket", "write minio://bucket"),
        (" s3://x", "blanks"),
        ("", "empty"),
        ("simplecache::s3://x", "chain|no URL|cannot be opened"),
        ("gs://bucket/x", "gcsfs"),
        ("nosuch://x", "cannot be opened"),
    ],
)
def test_what_is_nearly_a_url_is_refused_with_what_was_meant(given: str, meant: str) -> None:
    with pytest.raises(StorageError, match=meant) as caught:
        Storage(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["x", "./s3:/x", "/a//b", "a:b/c", "2026-01-05T12:30/x", "data//x", "~/x", "C1/lr[1]"]
)
def test_a_folder_is_a_folder(place: str) -> None:
    assert check_place(place) == place


def test_a_name_with_two_colons_is_a_name_like_any_other(tmp_path) -> None:
    storage = Storage(f"{tmp_path}/simplecache::x[1]*")
    storage.write_bytes("a", b"1")
    assert (tmp_path / "simplecache::x[1]*" / "a").read_bytes() == b"1"
    assert Storage(storage.url).read_bytes("a") == b"1"
