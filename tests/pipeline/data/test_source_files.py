"""Which files of a real folder belong to a source: nothing twice, nothing silently missing, nothing that hangs."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from curriculum.schema import SourceSpec
from pipeline.data.counters import Counters
from pipeline.data.errors import SourceError
from pipeline.data.globs import matches
from pipeline.data.pins import look, make_pin
from pipeline.data.quarantine import Quarantine
from pipeline.data.readers import Reader
from pipeline.storage import Storage

LINE = b'{"text": "one"}\n'
EVERYTHING = SourceSpec(globs=("data/**", "**"))


class Folder:
    def __init__(self, path: Path):
        self.path = path / "corpus"
        self.storage = Storage(str(path / "store"))

    def write(self, *names: str, content: bytes = LINE) -> None:
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(content)

    def pinned(self, *globs: str) -> list[str]:
        return [file.path for file in make_pin(self.storage, "web", self._spec(globs), str(self.path)).files]

    def left_out(self, *globs: str) -> dict[str, str]:
        return dict(look(self.storage, "web", self._spec(globs), str(self.path)).left_out)

    def _spec(self, globs: tuple[str, ...]) -> SourceSpec:
        return SourceSpec(globs=globs) if globs else SourceSpec()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("a.jsonl")
    return made


HIDDEN = [
    "_temporary/0/b.jsonl",
    ".hidden.jsonl",
    ".ipynb_checkpoints/a-checkpoint.jsonl",
    "__MACOSX/._a.jsonl",
]


@pytest.mark.parametrize("name", [*HIDDEN, ".tmp-a.jsonl", "x/_y/z/b.jsonl", "_SUCCESS.jsonl"])
@pytest.mark.parametrize("globs", [(), ("**",), ("**/*.jsonl", "*/**")])
def test_names_in_front_of_which_stands_a_dot_or_an_underscore_are_left_out_and_told(folder, name, globs):
    folder.write(name)
    assert folder.left_out(*globs).keys() == ({name} if matches(name, "**", hidden=True) else set())
    assert folder.pinned(*globs) == ["a.jsonl"] or globs[:1] == ("**/*.jsonl",)


def test_a_glob_that_writes_the_hidden_name_takes_it(folder):
    folder.write("_shards/b.jsonl", "_shards/.c.jsonl", ".d.jsonl")
    assert folder.pinned("_shards/*.jsonl") == ["_shards/b.jsonl"]
    assert folder.pinned("_shards/.*.jsonl") == ["_shards/.c.jsonl"]
    assert folder.pinned(".d.jsonl", "a.jsonl") == [".d.jsonl", "a.jsonl"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a.jsonl", "a.jsonl.gz"),
        ("x/b.jsonl.zst", "x/b.jsonl.gz"),
        ("c.jsonl.zstd", "c.jsonl.zst"),
        ("d.json", "d.JSONL"),
        ("e.parquet", "e.jsonl.bz2"),
    ],
)
def test_one_text_in_two_forms_is_refused_with_both_names(folder, one, two):
    folder.write(one, two)
    with pytest.raises(SourceError, match="one text in two forms") as refused:
        folder.pinned("**")
    assert repr(one) in str(refused.value) and repr(two) in str(refused.value)


def test_a_token_file_and_its_boundaries_are_one_text(folder):
    folder.write("t/a.npy", "t/a.csv.gz")
    assert folder.pinned("t/*.npy", "t/*.csv.gz") == ["t/a.csv.gz", "t/a.npy"]


OTHERS = [
    "shard.jsonl.zst338588528",
    "b.arrow",
    "b.txt",
    "b",
    "b.jsonl.lz4",
    "b.jsonl.gz.part",
    "b.jsonl~",
    "b.csv",
]


@pytest.mark.parametrize("name", OTHERS)
def test_a_kind_of_file_that_nobody_reads_is_left_out_and_told_or_refused_where_it_is_asked_for(folder, name):
    folder.write(name)
    assert folder.left_out("**") == {name: "of no kind that can be read"}
    assert folder.pinned("**") == ["a.jsonl"]
    with pytest.raises(SourceError, match=r"is of no kind that can be read; known: \.jsonl"):
        folder.pinned("a.jsonl", name)


CODECS = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".zstd": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_known_endings_in_any_case_are_read_as_what_they_are(folder, codec):
    (folder.path / "a.jsonl").unlink()
    names = []
    for number, end in enumerate((".jsonl", ".json", ".ndjson", ".JSONL")):
        for case in (str, str.upper):
            name = f"{number}{case.__name__}{case(end + codec)}"
            names.append(name)
            folder.write(name, content=CODECS[codec](LINE))
    pin = make_pin(folder.storage, "web", EVERYTHING, str(folder.path))
    assert [file.path for file in pin.files] == sorted(names)
    for file in pin.files:
        reader = Reader(max_line_bytes=1 << 20, counters=Counters(), quarantine=Quarantine())
        assert [document.text for document in reader.documents(Storage(str(folder.path)), file)] == ["one"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.jsonl", gzip.compress(LINE, mtime=0), "named plain JSON lines, but begins as gzip"),
        ("b.jsonl", zstandard.compress(LINE), "begins as zstd"),
        ("b.jsonl", b"PAR1....", "begins as parquet"),
        ("b.jsonl.gz", zstandard.compress(LINE), "named gzip, but begins as zstd"),
        ("b.jsonl.zst", LINE, "named zstd, but begins as something else"),
        ("b.parquet", b"version https://git-lfs.github.com/spec/v1\n", "begins as a Git LFS pointer"),
        ("b.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "begins as a Git LFS pointer"),
    ],
)
def test_first_bytes_that_are_not_what_the_name_says_are_refused_at_the_pin(folder, name, content, said):
    folder.write(name, content=content)
    with pytest.raises(SourceError, match=rf"{name} is .*{said}"):
        folder.pinned("**")


def test_a_symlinked_folder_is_followed_and_a_link_back_ends(folder, tmp_path):
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "elsewhere/deep/b.jsonl").write_bytes(LINE)
    (folder.path / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "elsewhere")
    (folder.path / "up").symlink_to("..", target_is_directory=True)
    (folder.path / "self").symlink_to(folder.path)
    left_out = folder.left_out()
    assert folder.pinned("*.jsonl", "linked/**") == ["a.jsonl", "linked/deep/b.jsonl"]
    assert left_out["self"] == "the same folder as '.'" and "the same folder" in left_out["linked/loop"]


def test_a_link_to_a_file_that_is_read_already_is_left_out_and_one_to_another_is_followed(folder, tmp_path):
    (tmp_path / "outside.jsonl").write_bytes(LINE)
    (folder.path / "b.jsonl").symlink_to(tmp_path / "outside.jsonl")
    (folder.path / "again.jsonl").symlink_to("a.jsonl")
    folder.write(".blobs/1234")
    (folder.path / "c.jsonl").symlink_to(".blobs/1234")
    assert folder.left_out() == {"again.jsonl": "a link to 'a.jsonl', which is read already"}
    assert folder.pinned() == ["a.jsonl", "b.jsonl", "c.jsonl"]


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (dangling, "a link to nothing"),
        (to_itself, "a link to nothing"),
        (os.mkfifo, "a FIFO, not a file"),
        (sock, "a socket, not a file"),
    ],
)
def test_what_is_no_file_is_named_at_once_where_it_is_asked_for_and_told_elsewhere(
    folder, make, reason, monkeypatch
):
    monkeypatch.chdir(folder.path)
    make(folder.path / "b.jsonl")
    with pytest.raises(SourceError, match=rf"sources\.web: .*'b\.jsonl': {reason}"):
        folder.pinned()
    (folder.path / "b.jsonl").rename(folder.path / "b.txt")
    assert folder.pinned() == ["a.jsonl"]
    assert reason in folder.left_out()["b.txt"]


def test_a_link_to_a_folder_that_is_gone_is_named(folder):
    (folder.path / "data").symlink_to("/nowhere/at/all")
    with pytest.raises(SourceError, match="'data': a link to nothing"):
        folder.pinned()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["b.jsonl", "closed/b.jsonl"])
def test_what_may_not_be_read_is_named(folder, name):
    folder.write(name)
    top = folder.path / name.split("/")[0]
    top.chmod(0)
    try:
        with pytest.raises(SourceError, match=name.split("/")[0]):
            folder.pinned()
    finally:
        top.chmod(0o700)


@pytest.mark.parametrize(
    ("name", "reason"),
    [(b"b\xff.jsonl", "its name is not UTF-8"), (b"b\\c.jsonl", "its name has a backslash")],
)
def test_a_name_that_cannot_be_kept_is_named(folder, name, reason):
    Path(os.fsdecode(os.path.join(os.fsencode(folder.path), name))).write_bytes(LINE)
    with pytest.raises(SourceError, match=reason) as refused:
        folder.pinned()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "name", ["b[1].jsonl", "b*.jsonl", "b?.jsonl", "{b}.jsonl", "a b\u00e9.jsonl", "#%41.jsonl"]
)
def test_a_name_that_looks_like_a_pattern_is_a_name(folder, name):
    folder.write(name, "b1.jsonl")
    assert folder.pinned() == sorted(["a.jsonl", "b1.jsonl", name])
    assert name in folder.pinned(name, "a.jsonl")


@given(st.lists(st.sampled_from(["a", "b1", "_t", ".h", "__MACOSX"]), min_size=1, max_size=5))
def test_wildcards_never_stand_for_a_hidden_part(parts):
    path = "/".join(parts) + ".jsonl"
    hidden = any(part[0] in "._" for part in parts)
    for glob in ("**", "**/*.jsonl", "**/**", "**/*"):
        assert matches(path, glob) is not hidden and matches(path, glob, hidden=True)
    assert matches(path, path)
