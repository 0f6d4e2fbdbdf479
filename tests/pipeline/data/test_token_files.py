"""OLMo-core's headerless token files, written here in that format from real text."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.groups import plan_groups
from pipeline.data.pins import make_pin
from pipeline.data.shards import read_documents
from pipeline.data.token_files import token_dtype
from pipeline.storage import Storage

TOKENS = SourceSpec(globs=("**/*.npy", "**/*.csv.gz"))


@pytest.fixture
def encoded(tokenizer, prose_texts):
    return [np.append(ids, tokenizer.eos_id) for ids in tokenizer.encode_batch(prose_texts[:120])]


def npy(documents) -> bytes:
    return np.concatenate(documents).astype("<u2").tobytes()


def boundaries(documents) -> bytes:
    ends = np.cumsum([len(ids) for ids in documents])
    rows = [
        f"{end - len(ids)},{end},id-{i},src,{i}"
        for i, (ids, end) in enumerate(zip(documents, ends, strict=True))
    ]
    return gzip.compress(("\n".join(rows) + "\n").encode())


@pytest.fixture
def run(tmp_path, stage, tokenizer):
    def run(files: dict[str, bytes], **settings):
        storage = Storage(str(tmp_path / "store"))
        for name, content in files.items():
            storage.write_bytes(f"olmo/{name}", content)
        pin = make_pin(storage, "olmo", TOKENS, storage.uri("olmo"))
        data = DataSpec(**{"heldout_fraction": 0.0, **settings})
        return storage, pin, stage(storage, "steps/olmo", pin, tokenizer, data)

    return run


def rows(storage, manifest) -> list[list[int]]:
    return [
        ids
        for entry in manifest.shards
        for ids in read_documents(storage, manifest.output, entry).column("input_ids").to_pylist()
    ]


@pytest.mark.parametrize("with_boundaries", [True, False])
def test_tokens_and_documents_are_taken_over_as_they_are(run, encoded, with_boundaries, prose_texts):
    files = {"part-0.npy": npy(encoded[:70]), "part-1.npy": npy(encoded[70:])}
    if with_boundaries:
        files |= {"part-0.csv.gz": boundaries(encoded[:70]), "part-1.csv.gz": boundaries(encoded[70:])}
    storage, _, manifest = run(files)
    assert rows(storage, manifest) == [ids.tolist() for ids in encoded]
    assert manifest.counters.bytes_written == sum(len(text.encode()) for text in prose_texts[:120])
    keys = read_documents(storage, manifest.output, manifest.shards[0]).column("doc_key").to_pylist()
    assert keys[0] == "part-0.npy:1" and keys[-1] == "part-1.npy:50"


def test_what_is_held_out_is_what_would_be_held_out_of_the_text(
    run, encoded, prose_texts, tmp_path, stage, tokenizer, lines
):
    storage, _, imported = run({"part-0.npy": npy(encoded)}, heldout_fraction=0.2)
    storage.write_bytes("text/a.jsonl", lines(*prose_texts[:120]))
    pin = make_pin(storage, "text", SourceSpec(), storage.uri("text"))
    staged = stage(storage, "steps/text", pin, tokenizer, DataSpec(heldout_fraction=0.2))
    assert rows(storage, imported) == rows(storage, staged) and imported.counters.documents_held_out > 5
    assert imported.counters == staged.counters


def test_a_file_and_its_boundaries_are_always_in_one_group(run, encoded):
    files = {f"part-{n}.npy": npy(encoded[n * 10 : n * 10 + 10]) for n in range(4)}
    files |= {f"part-{n}.csv.gz": boundaries(encoded[n * 10 : n * 10 + 10]) for n in range(4)}
    _, pin, manifest = run(files, group_bytes=1)
    groups = plan_groups(pin, DataSpec(group_bytes=1))
    assert [[file.path for file in group.files] for group in groups] == [
        [f"part-{n}.csv.gz", f"part-{n}.npy"] for n in range(4)
    ]
    assert manifest.counters.documents_written == 40


def test_an_unfinished_last_document_is_closed_by_an_eos(run, encoded, tokenizer):
    storage, _, manifest = run({"a.npy": npy([encoded[0], encoded[1][:-3]])})
    assert rows(storage, manifest) == [encoded[0].tolist(), [*encoded[1][:-3].tolist(), tokenizer.eos_id]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f: {**f, "a.npy": f["a.npy"][:-1]}, DamagedFile, "no whole number of 2-byte tokens"),
        (lambda f: {**f, "a.npy": f["a.npy"] + b"\x01\x00"}, DamagedFile, "boundaries end at token"),
        (lambda f: {**f, "a.npy": f["a.npy"][:-2]}, DamagedFile, r"document \[.*after token"),
        (
            lambda f: {**f, "a.csv.gz": f["a.csv.gz"][:-9]},
            DamagedFile,
            r"a\.csv\.gz: cannot be read to its end",
        ),
        (lambda f: {**f, "a.csv.gz": gzip.compress(b"start,end\n")}, DamagedFile, "ValueError"),
        (lambda f: {**f, "a.csv.gz": gzip.compress(b"")}, DamagedFile, "boundaries end at token 0"),
        (
            lambda f: {**f, "a.npy": b"\xff\xff" + f["a.npy"][2:]},
            SourceError,
            "token 65535 is outside .* 2048",
        ),
    ],
)
def test_damage_is_an_error_and_commits_nothing(run, encoded, tmp_path, change, error, message):
    files = {"a.npy": npy(encoded), "a.csv.gz": boundaries(encoded)}
    with pytest.raises(error, match=message):
        run(change(files))
    assert not Storage(str(tmp_path / "store")).keys("steps/olmo/groups")


def test_the_width_is_the_smallest_that_holds_the_vocabulary():
    assert [token_dtype(size).itemsize for size in (256, 257, 65_536, 65_537, 100_278)] == [1, 2, 2, 4, 4]
