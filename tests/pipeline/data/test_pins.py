from __future__ import annotations

import shutil

import pyarrow
import pytest

from curriculum.schema import SourceSpec
from pipeline.data.errors import SourceError
from pipeline.data.pins import load_pin, make_pin, pin_key
from pipeline.storage import Storage

CODE = SourceSpec(builtin="stdlib-code")


@pytest.fixture
def corpus(tmp_path):
    for name in ("data/b/1.jsonl", "data/a/1.jsonl", "notes.txt"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(f'{{"text": "{name}"}}\n')
    return tmp_path / "corpus"


def test_a_directory_is_pinned_as_its_matching_files_sorted_with_size_and_hash(tmp_path, corpus):
    pin = make_pin(Storage(str(tmp_path / "store")), "web", SourceSpec(), str(corpus))
    assert [file.path for file in pin.files] == ["data/a/1.jsonl", "data/b/1.jsonl"]
    assert all(len(file.sha256) == 64 and file.size == 27 for file in pin.files)


def test_the_digest_is_of_content_and_not_of_place(tmp_path, corpus):
    shutil.copytree(corpus, tmp_path / "elsewhere")
    one = make_pin(Storage(str(tmp_path / "store-1")), "web", SourceSpec(), str(corpus))
    two = make_pin(Storage(str(tmp_path / "store-2")), "web", SourceSpec(), str(tmp_path / "elsewhere"))
    assert one.digest == two.digest and one.location != two.location
    (tmp_path / "elsewhere/data/a/1.jsonl").write_text('{"text": "data/a/2.jsonl"}\n')
    three = make_pin(Storage(str(tmp_path / "store-3")), "web", SourceSpec(), str(tmp_path / "elsewhere"))
    assert three.digest != one.digest


def test_a_pin_once_made_is_kept_and_follows_a_moved_location(tmp_path, corpus):
    storage = Storage(str(tmp_path / "store"))
    assert load_pin(storage, "web", SourceSpec(), str(corpus)) is None
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    (corpus / "data/c.jsonl").write_text('{"text": "later"}\n')
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == first
    assert load_pin(storage, "web", SourceSpec(), None) == first
    moved = load_pin(storage, "web", SourceSpec(), "/mnt/other")
    assert moved is not None and (moved.digest, moved.location) == (first.digest, "/mnt/other")


def test_the_pin_key_is_of_the_name_and_of_what_selects_files(tmp_path):
    assert pin_key("web", SourceSpec()) != pin_key("code", SourceSpec())
    assert pin_key("web", SourceSpec()) != pin_key("web", SourceSpec(globs=("data/**",)))
    assert pin_key("web", SourceSpec()) == pin_key("web", SourceSpec(special_tokens="keep"))


def test_a_builtin_is_laid_out_once_in_parts_and_its_digest_does_not_know_the_compressor(
    tmp_path, monkeypatch
):
    storage = Storage(str(tmp_path / "store"))
    pin = make_pin(storage, "code", CODE, None)
    assert len(pin.files) > 1 and pin.location == f"sources/code-{pin.digest[:12]}"
    assert storage.keys(pin.location) == [f"{pin.location}/{file.path}" for file in pin.files]

    compress = pyarrow.compress
    monkeypatch.setattr(pyarrow, "compress", lambda data, codec, asbytes: compress(data, "gzip", asbytes))
    other = make_pin(Storage(str(tmp_path / "other")), "code", CODE, None)
    assert other.digest == pin.digest and other.files[0].sha256 != pin.files[0].sha256
    assert [file.weight for file in other.files] == [file.weight for file in pin.files]


@pytest.mark.parametrize(
    ("spec", "location", "message"),
    [
        (SourceSpec(), None, r"sources\.web: no location; set runtime\.locations\.web"),
        (SourceSpec(), "/nowhere/at/all", r"sources\.web: no file below '/nowhere/at/all'"),
        (SourceSpec(globs=("*.csv",)), "CORPUS", r"matches \*\.csv"),
        (SourceSpec(), "nosuch://bucket/x", r"runtime\.locations\.web: 'nosuch://bucket/x' cannot be listed"),
        (
            SourceSpec(builtin="wikipedia"),
            None,
            r"sources\.web\.builtin: 'wikipedia' is unknown; known: stdlib-code",
        ),
    ],
)
def test_what_cannot_be_pinned_is_named_and_leaves_nothing(tmp_path, corpus, spec, location, message):
    storage = Storage(str(tmp_path / "store"))
    with pytest.raises(SourceError, match=message):
        make_pin(storage, "web", spec, str(corpus) if location == "CORPUS" else location)
    assert storage.keys("") == []
