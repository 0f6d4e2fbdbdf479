from __future__ import annotations

import os
import shutil

import pyarrow
import pytest

from curriculum.schema import SourceSpec
from pipeline.data import compare, objects
from pipeline.data.errors import SourceError
from pipeline.data.pins import load_pin, look, make_pin, pin_key, renew_pin
from pipeline.data.verified import open_verified
from pipeline.storage import Storage

CODE = SourceSpec(builtin="stdlib-code")


@pytest.fixture
def corpus(tmp_path):
    for name in ("data/b/1.jsonl", "data/a/1.jsonl", "notes.txt"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(f'{{"text": "{name}"}}\n')
    return tmp_path / "corpus"


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path / "store"))


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Paths whose bytes a comparison read."""
    paths: list[str] = []
    has_content = compare.has_content

    def spy(root, file):
        paths.append(file.path)
        return has_content(root, file)

    monkeypatch.setattr(compare, "has_content", spy)
    return paths


def test_a_directory_is_pinned_as_its_matching_files_sorted_with_size_and_hash(storage, corpus):
    pin = make_pin(storage, "web", SourceSpec(), str(corpus))
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


def test_the_digest_of_a_correct_source_is_what_it_always_was(storage, corpus):
    """Pins made by the first version stay the same sources."""
    assert make_pin(storage, "web", SourceSpec(), str(corpus)).digest == (
        "2086e5dfed1c73d5b8972b8cb83c2a4b453808c6ce6e4ffc1ca8ada42e6a3da3"
    )


def add(corpus):
    (corpus / "data/c.jsonl").write_text('{"text": "later"}\n')


def edit(corpus):
    (corpus / "data/a/1.jsonl").write_text('{"text": "data/A/1.jsonl"}\n')


def edit_and_set_the_time_back(corpus):
    path = corpus / "data/a/1.jsonl"
    before = path.stat()
    edit(corpus)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def grow(corpus):
    with open(corpus / "data/b/1.jsonl", "a") as file:
        file.write('{"text": "more"}\n')


def remove(corpus):
    (corpus / "data/b/1.jsonl").unlink()


def rename(corpus):
    (corpus / "data/b/1.jsonl").rename(corpus / "data/b/2.jsonl")


CHANGES = [
    (add, r"1 added \('data/c\.jsonl'\)"),
    (edit, r"1 changed \('data/a/1\.jsonl'\)"),
    (edit_and_set_the_time_back, r"1 changed \('data/a/1\.jsonl'\)"),
    (grow, r"1 changed \('data/b/1\.jsonl'\)"),
    (remove, r"1 removed \('data/b/1\.jsonl'\)"),
    (rename, r"1 added \('data/b/2\.jsonl'\); 1 removed \('data/b/1\.jsonl'\)"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_what_changed_since_the_pin_is_named_and_refused_until_it_is_renewed(storage, corpus, change, named):
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    change(corpus)
    for refuses in (look, make_pin):
        with pytest.raises(SourceError, match=rf"{named}.*ncp data pin web --renew"):
            refuses(storage, "web", SourceSpec(), str(corpus))
    second, before = renew_pin(storage, "web", SourceSpec(), str(corpus))
    assert before == first.digest != second.digest
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == second
    assert load_pin(storage, "web", SourceSpec(), None, first.digest) == first
    assert load_pin(storage, "web", SourceSpec(), None, second.digest) == second
    assert load_pin(storage, "web", SourceSpec(), None, "0" * 64) is None


def test_many_changes_are_the_first_few_and_a_count(storage, corpus):
    make_pin(storage, "web", SourceSpec(), str(corpus))
    for number in range(20):
        (corpus / f"n{number:02d}.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(SourceError, match=r"20 added \('n00.jsonl', 'n01.jsonl', 'n02.jsonl' and 17 more\)"):
        make_pin(storage, "web", SourceSpec(), str(corpus))


def test_another_place_with_other_text_is_refused_though_names_sizes_and_times_agree(
    storage, corpus, tmp_path
):
    make_pin(storage, "web", SourceSpec(), str(corpus))
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    (other / "data/a/1.jsonl").write_text('{"text": "data/A/1.jsonl"}\n')
    shutil.copystat(corpus / "data/a/1.jsonl", other / "data/a/1.jsonl")
    with pytest.raises(SourceError, match=r"1 changed \('data/a/1.jsonl'\).*--renew --location .*other"):
        make_pin(storage, "web", SourceSpec(), str(other))


def test_the_same_content_elsewhere_is_the_same_source_and_is_read_once(
    storage, corpus, tmp_path, read, monkeypatch
):
    monkeypatch.setattr(objects, "RACE_NS", 0)
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == first and not read
    shutil.copytree(corpus, tmp_path / "elsewhere")
    for _ in range(2):
        moved = make_pin(storage, "web", SourceSpec(), str(tmp_path / "elsewhere"))
        assert moved.digest == first.digest and moved.location == str(tmp_path / "elsewhere")
    assert len(read) == len(first.files)


def test_only_a_file_whose_times_changed_is_read_again(storage, corpus, read, monkeypatch):
    monkeypatch.setattr(objects, "RACE_NS", 0)
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    os.utime(corpus / "data/b/1.jsonl", (1, 1))
    assert look(storage, "web", SourceSpec(), str(corpus)).pin == first
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == first
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == first
    assert read == ["data/b/1.jsonl"] * 2  # a plan writes nothing, the run after it remembers


def test_a_pin_of_the_first_version_is_compared_by_sizes_and_hashes(storage, corpus, read):
    key = pin_key("web", SourceSpec())
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    record = storage.read_json(key)
    old = {key: record[key] for key in ("format", "source", "requested", "location", "digest")}
    files = [{name: value for name, value in file.items() if name != "stamp"} for file in record["files"]]
    storage.write_json(key, {**old, "files": files})
    assert make_pin(storage, "web", SourceSpec(), str(corpus)) == first
    assert sorted(read) == [file.path for file in first.files]


def test_content_that_was_pinned_before_a_renewal_is_known_again(storage, corpus, tmp_path):
    """A run of the old content goes on where that content still lies."""
    shutil.copytree(corpus, tmp_path / "old")
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    add(corpus)
    second, _ = renew_pin(storage, "web", SourceSpec(), None)
    assert make_pin(storage, "web", SourceSpec(), str(tmp_path / "old")).digest == first.digest
    assert make_pin(storage, "web", SourceSpec(), str(corpus)).digest == second.digest


def test_another_recipe_that_selects_other_files_has_a_pin_of_its_own(storage, corpus):
    make_pin(storage, "web", SourceSpec(), str(corpus))
    one = make_pin(storage, "web", SourceSpec(globs=("data/a/*.jsonl",)), str(corpus))
    assert [file.path for file in one.files] == ["data/a/1.jsonl"]


def test_a_place_that_is_gone_is_refused_by_who_names_it_and_noted_for_who_does_not(storage, corpus):
    first = make_pin(storage, "web", SourceSpec(), str(corpus))
    shutil.rmtree(corpus)
    with pytest.raises(SourceError, match="2 removed"):
        make_pin(storage, "web", SourceSpec(), str(corpus))
    seen = look(storage, "web", SourceSpec(), None)
    assert seen.pin == first


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


def test_the_text_of_a_builtin_is_compared_too_and_laid_out_again_by_a_renewal(storage):
    pin = make_pin(storage, "code", CODE, None)
    assert make_pin(storage, "code", CODE, None) == pin
    key = f"{pin.location}/{pin.files[0].path}"
    content = storage.read_bytes(key)
    storage.write_bytes(key, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SourceError, match=r"sources\.code: .*1 changed .*ncp data pin code --renew"):
        make_pin(storage, "code", CODE, None)
    renewed, before = renew_pin(storage, "code", CODE, None)
    assert (renewed, before) == (pin, None) and storage.read_bytes(key) == content


def test_a_first_look_tells_what_a_run_would_take_and_writes_nothing(storage, corpus):
    seen = look(storage, "web", SourceSpec(globs=("**",)), str(corpus))
    assert (seen.pin, seen.files, seen.bytes, seen.place) == (None, 2, 54, str(corpus))
    assert [path for path, _ in seen.left_out] == ["notes.txt"]
    nowhere = look(storage, "web", SourceSpec(), "/nowhere/at/all")
    assert nowhere.pin is None and "no file there" in nowhere.note
    assert storage.keys("") == []


def test_a_pinned_file_that_became_a_fifo_is_named_and_hangs_nobody(storage, corpus):
    (corpus / "empty.jsonl").write_text("")
    pin = make_pin(storage, "web", SourceSpec(), str(corpus))
    (corpus / "empty.jsonl").unlink()
    os.mkfifo(corpus / "empty.jsonl")
    with pytest.raises(SourceError, match=r"'empty\.jsonl': a FIFO"):
        make_pin(storage, "web", SourceSpec(), str(corpus))
    (empty,) = (file for file in pin.files if file.path == "empty.jsonl")
    with (
        pytest.raises(SourceError, match=r"empty\.jsonl: no file any more"),
        open_verified(Storage(str(corpus)), empty),
    ):
        pass


@pytest.mark.parametrize(
    ("spec", "location", "message"),
    [
        (SourceSpec(), None, r"sources\.web: no location; set runtime\.locations\.web"),
        (SourceSpec(), "/nowhere/at/all", r"sources\.web: no file below '/nowhere/at/all'"),
        (SourceSpec(globs=("*.csv",)), "CORPUS", r"matches \*\.csv"),
        (
            SourceSpec(globs=("*.txt",)),
            "CORPUS",
            r"'notes\.txt' is of no kind that can be read; known: \.jsonl",
        ),
        (SourceSpec(globs=("data/[z-a]",)), "CORPUS", r"globs: 'data/\[z-a\]' cannot be understood"),
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
