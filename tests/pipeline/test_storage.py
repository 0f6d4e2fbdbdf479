"""The guarantees of storage, on a disk and in memory."""

from __future__ import annotations

import os
import pickle
import threading
import uuid
from pathlib import Path

import pytest

from pipeline.storage import Storage, StorageError


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def test_write_then_read_gives_the_same_bytes(storage: Storage) -> None:
    storage.write_bytes("a/b.bin", b"\x00\x01")
    assert storage.read_bytes("a/b.bin") == b"\x00\x01"
    assert storage.size("a/b.bin") == 2
    assert storage.read_range("a/b.bin", 1, 1) == b"\x01"


def test_create_succeeds_once_and_keeps_the_first_content(storage: Storage) -> None:
    assert storage.create("lease/1", b"first")
    assert not storage.create("lease/1", b"second")
    assert storage.read_bytes("lease/1") == b"first"


def test_of_many_concurrent_creators_exactly_one_wins(storage: Storage) -> None:
    wins = []
    start = threading.Barrier(8)

    def contend(number: int) -> None:
        start.wait()
        if storage.create("lease/1", str(number).encode()):
            wins.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert storage.read_bytes("lease/1") == str(wins[0]).encode()


def test_an_exception_while_writing_leaves_the_old_object_and_nothing_else(storage: Storage) -> None:
    storage.write_bytes("a/b", b"old")
    with pytest.raises(RuntimeError), storage.open_write("a/b") as file:
        file.write(b"half of the n")
        raise RuntimeError("power cut")
    assert storage.read_bytes("a/b") == b"old"
    assert storage.keys("") == ["a/b"]


def test_listings_are_sorted_and_hide_unfinished_writes(storage: Storage) -> None:
    for key in ("x/b", "x/a", "x/c/d"):
        storage.write_bytes(key, b"")
    assert storage.children("x") == ["a", "b", "c"]
    assert storage.keys("x") == ["x/a", "x/b", "x/c/d"]
    assert storage.children("missing") == []
    assert storage.keys("missing") == []
    local = storage.local_path("x")
    if local is not None:
        (local / ".tmp-a-123").write_bytes(b"")
        assert storage.children("x") == ["a", "b", "c"]
        assert storage.keys("x") == ["x/a", "x/b", "x/c/d"]


def test_delete_is_idempotent(storage: Storage) -> None:
    storage.write_bytes("x/a", b"")
    storage.delete("x/a")
    storage.delete("x/a")
    storage.delete_tree("x")
    storage.delete_tree("x")
    assert storage.keys("") == []


def test_the_root_cannot_be_deleted(storage: Storage) -> None:
    with pytest.raises(StorageError, match="root"):
        storage.delete_tree("")


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "a\\b", "a\0b"])
def test_a_key_cannot_leave_the_root(storage: Storage, key: str) -> None:
    with pytest.raises(StorageError, match="leaves the storage root"):
        storage.read_bytes(key)


def test_only_the_url_is_pickled(storage: Storage) -> None:
    storage.write_bytes("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read_bytes("a") == b"1"


def test_json_that_is_not_json_names_the_file(storage: Storage) -> None:
    storage.write_bytes("a.json", b"{")
    with pytest.raises(ValueError, match=r"a\.json: not a JSON record"):
        storage.read_json("a.json")


def test_probe_accepts_a_good_backend_and_leaves_nothing(storage: Storage) -> None:
    storage.probe()
    assert storage.keys("") == []


def test_probe_refuses_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"is a file; choose another --storage"):
        Storage(str(tmp_path / "file")).probe()


def test_probe_refuses_a_backend_without_exclusive_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "link", lambda source, target: Path(target).write_bytes(Path(source).read_bytes())
    )
    with pytest.raises(StorageError, match="no exclusive put"):
        Storage(str(tmp_path)).probe()


def test_an_unknown_scheme_names_the_url() -> None:
    with pytest.raises(StorageError, match="'nosuch://x' cannot be opened"):
        Storage("nosuch://x")
