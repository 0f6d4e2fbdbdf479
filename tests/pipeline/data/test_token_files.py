"""OLMo-core's headerless token files, written here in that format from real text."""

from __future__ import annotations

import gzip
import io
import struct

import numpy as np
import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.groups import plan_groups
from pipeline.data.pins import Pin, make_pin
from pipeline.data.shards import read_documents
from pipeline.data.tokenize_group import tokenize_group
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.storage import Storage

TOKENS = SourceSpec(globs=("**/*.npy", "**/*.csv.gz", "**/*.bin", "**/*.idx", "**/*.ds", "**/*.ds.index"))


@pytest.fixture
def encoded(tokenizer, prose_texts):
    return [np.append(ids, tokenizer.eos_id) for ids in tokenizer.encode_batch(prose_texts[:120])]


def npy(documents, dtype="<u2") -> bytes:
    return np.concatenate(documents).astype(dtype).tobytes()


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def megatron(documents, code=8) -> bytes:
    """An index as megatron.core.datasets.indexed_dataset writes it: a sequence a document."""
    lengths = np.array([len(ids) for ids in documents], dtype="<i4")
    width = {4: 4, 8: 2}[code]
    offsets = (np.cumsum([0, *lengths[:-1]]) * width).astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
    return head + lengths.tobytes() + offsets.tobytes() + np.arange(len(documents) + 1, dtype="<i8").tobytes()


def ends(documents) -> bytes:
    return np.cumsum([len(ids) for ids in documents]).astype("<u8").tobytes()


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
        (lambda f: {**f, "a.npy": f["a.npy"][:-1]}, SourceError, "no whole number of 2-byte tokens"),
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


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i8"])
@pytest.mark.parametrize("with_boundaries", [True, False])
def test_the_width_of_ids_is_proved_by_the_text_they_are(run, encoded, dtype, with_boundaries):
    files = {"a.npy": npy(encoded, dtype)}
    if with_boundaries:
        files["a.csv.gz"] = boundaries(encoded)
    storage, _, manifest = run(files)
    assert rows(storage, manifest) == [ids.tolist() for ids in encoded]


@pytest.mark.parametrize("dtype", ["<u2", ">u4", "<i8", "<u4"])
def test_the_header_of_np_save_is_believed(run, encoded, dtype):
    storage, _, manifest = run({"a.npy": saved(np.concatenate(encoded).astype(dtype))})
    assert rows(storage, manifest) == [ids.tolist() for ids in encoded]


@pytest.mark.parametrize(
    "files",
    [
        lambda documents: {"a.bin": npy(documents), "a.idx": megatron(documents)},
        lambda documents: {"a.bin": npy(documents, "<i4"), "a.idx": megatron(documents, 4)},
        lambda documents: {"a.ds": npy(documents), "a.ds.index": ends(documents)},
        lambda documents: {"a.ds": npy(documents, "<u4"), "a.ds.index": ends(documents)},
    ],
    ids=["megatron", "megatron-int32", "datatrove", "datatrove-uint32"],
)
def test_files_of_the_other_toolkits_give_the_same_documents(run, encoded, files):
    storage, _, manifest = run(files(encoded), group_bytes=1)
    assert rows(storage, manifest) == [ids.tolist() for ids in encoded]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (lambda d: {"a.npy": saved(np.concatenate(d).astype("f4"))}, r"a\.npy: a NumPy array of float32"),
        (
            lambda d: {"a.npy": saved(np.concatenate(d)[None])},
            r"a\.npy: a NumPy array of int64 and shape \(1, ",
        ),
        (lambda d: {"a.npy": npy(d)[1:] + b"\0"}, r"a\.npy: no width .*uint16: .*uint32: .*int64: "),
        (
            lambda d: {"a.npy": npy([ids[:-1] for ids in d])},
            r"a\.npy: .* not in the tokenizer's '<\|endoftext\|>'",
        ),
        (
            lambda d: {"a.npy": npy([np.append(ids[:-1], 5) for ids in d]), "a.csv.gz": boundaries(d)},
            r"a\.npy: document 1 ends in id 5, not in the tokenizer's",
        ),
        (
            lambda d: {"a.ds": npy([np.append(ids[:-1], 5) for ids in d]), "a.ds.index": ends(d)},
            r"a\.ds: document 1 ends in id 5",
        ),
        (
            lambda d: {"a.npy": npy(d), "b.csv.gz": boundaries(d)},
            r"b\.csv\.gz holds the boundaries of b\.npy, which is not",
        ),
        (lambda d: {"a.npy": npy(d), "b.idx": megatron(d)}, r"b\.idx holds the boundaries of b\.bin"),
        (lambda d: {"a.bin": npy(d)}, r"a\.bin: no \.idx beside it"),
        (lambda d: {"a.ds": npy(d)}, r"a\.ds: no \.ds\.index beside it"),
        (lambda d: {"a.bin": struct.pack("<3i", 20240520, 1, 9) + npy(d)}, r"a\.bin: a file of llm\.c"),
        (lambda d: {"a.bin": npy(d), "a.idx": b"MMIDIDX"}, r"a\.idx: not an index of Megatron"),
        (lambda d: {"a.bin": npy(d), "a.idx": megatron(d)[:-90]}, r"a\.idx: .* it was cut short"),
        (lambda d: {"a.bin": npy(d[:-1]), "a.idx": megatron(d)}, r"a\.idx: document .* after token"),
    ],
)
def test_what_is_not_text_of_this_tokenizer_is_refused_by_name(run, encoded, tmp_path, files, message):
    with pytest.raises(SourceError, match=message):
        run(files(encoded))
    assert not Storage(str(tmp_path / "store")).keys("steps/olmo/groups")


def test_ids_of_another_tokenizer_of_the_same_size_are_refused(run, prose_texts, tokenizer):
    other = Tokenizer(train_bpe(reversed(prose_texts[500:]), 2048))
    assert other.sha256 != tokenizer.sha256
    shuffled = np.random.default_rng(0).permutation(2048 - 2) + 2
    ids = [
        np.append(shuffled[np.array(tokenizer.encode(text)) - 2], tokenizer.eos_id)
        for text in prose_texts[:50]
    ]
    with pytest.raises(SourceError, match=r"a\.npy: no width .* come back when decoded and encoded again"):
        run({"a.npy": npy(ids)})


def test_boundaries_apart_from_their_file_are_still_of_its_group(run, encoded):
    files = {
        "a.csv.gz": boundaries(encoded),
        "a.ds": npy(encoded),
        "a.ds.index": ends(encoded),
        "a.npy": npy(encoded),
    }
    storage, pin, manifest = run(files, group_bytes=1)
    assert len(plan_groups(pin, DataSpec(group_bytes=1))) == 1
    assert manifest.counters.documents_written == 2 * len(encoded)
    assert rows(storage, manifest) == 2 * [ids.tolist() for ids in encoded]


def test_a_width_that_is_told_needs_no_proof_and_a_wrong_one_is_refused(tmp_path, tokenizer):
    """Ids in random order, which no proof would believe."""
    storage = Storage(str(tmp_path / "store"))
    ids = np.random.default_rng(1).integers(2, 2048, 400)
    ids[99::100] = tokenizer.eos_id
    storage.write_bytes("olmo/a.npy", ids.astype("<u4").tobytes())
    pin: Pin = make_pin(storage, "olmo", TOKENS, storage.uri("olmo"))
    (group,) = plan_groups(pin, DataSpec())

    def stage(dtype: str):
        return tokenize_group(
            storage=storage,
            output=f"steps/{dtype or 'proof'}",
            root=pin.open_root(storage),
            source="olmo",
            group=group,
            special_tokens="text",
            data=DataSpec(heldout_fraction=0.0),
            tokenizer=tokenizer,
            token_dtype=dtype,
        )

    assert stage("uint32").counters.tokens_written == 400
    with pytest.raises(SourceError, match=r"a\.npy: no width"):
        stage("")
    with pytest.raises(SourceError, match=r"a\.npy: token .* is outside .* or token_dtype is wrong"):
        stage("int64")
    storage.write_bytes("olmo/a.npy", saved(ids.astype("<u4")))
    again: Pin = make_pin(storage, "saved", TOKENS, storage.uri("olmo"))
    (group,) = plan_groups(again, DataSpec())
    with pytest.raises(SourceError, match=r"a\.npy: holds uint32, token_dtype says uint16"):
        stage("uint16")
