"""What users of such pipelines trip over, one test per complaint.

Collected from the issue trackers of datatrove, dolma, OLMo-core, Megatron-LM, torchtune, Ray and others; the number is
the complaint's in NCP's own list. 11 and 30 are about evaluation and are tested there; 26 (throttling) is tested
against an S3 server in `test_s3.py`, and 23 and 24 also by Ray in `test_staging.py`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
import zstandard

from pipeline.data.errors import DamagedFile, ShardError, SourceError
from pipeline.data.loader import IGNORE_INDEX, WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.shards import map_tokens, read_documents
from pipeline.records import unseal_lines
from pipeline.storage import Storage


def documents(store: Storage, manifest: Manifest) -> dict[str, list[int]]:
    """doc_key -> input_ids of all shards, in order."""
    found = {}
    for entry in manifest.shards:
        batch = read_documents(store, manifest.output, entry)
        found |= dict(
            zip(batch.column("doc_key").to_pylist(), batch.column("input_ids").to_pylist(), strict=True)
        )
    return found


def stream(store: Storage, manifest: Manifest) -> list[int]:
    return [int(i) for ids in documents(store, manifest).values() for i in ids]


def loader(store: Storage, manifest: Manifest, sequence_length: int = 8, windows: int = 4, seed: int = 0):
    return WindowLoader(
        storage=store,
        outputs={"corpus": manifest.output},
        weights={"corpus": 1.0},
        block=windows,
        seed=seed,
        sequence_length=sequence_length,
        global_batch_tokens=windows * sequence_length,
    )


@pytest.fixture
def many(lines) -> bytes:
    return lines(*(f"this is the text of document number {number}" for number in range(200)))


def test_01_empty_documents_do_not_shift_keys_against_tokens(stage_files, store, tokenizer, lines):
    files = {"a.jsonl": lines("one", "", "two", " \n ", "three", None)}
    manifest = stage_files(files, bad_line_tolerance=0.2)
    texts = {key: tokenizer.decode(ids[:-1]) for key, ids in documents(store, manifest).items()}
    assert texts == {"a.jsonl:1": "one", "a.jsonl:3": "two", "a.jsonl:5": "three"}
    assert manifest.counters.skipped == {"empty": 2, "bad_text": 1}


def test_02_a_document_larger_than_a_shard_gets_a_shard_of_its_own_and_ends(
    stage_files, store, tokenizer, lines
):
    long = "word " * 300
    manifest = stage_files({"a.jsonl": lines("before", long, "after")}, shard_tokens=100)
    assert [entry.rows for entry in manifest.shards] == [2, 1]
    assert manifest.shards[0].tokens >= 300
    assert tokenizer.decode(documents(store, manifest)["a.jsonl:2"][:-1]) == long


def test_03_too_little_data_is_a_clear_error_and_no_empty_file(stage_files, store, lines):
    manifest = stage_files({"a.jsonl": lines("short"), "b.jsonl": lines("", "")}, group_bytes=1)
    assert len(manifest.shards) == 1 and manifest.windows(512) == 0
    with pytest.raises(ValueError, match=r"mixture\.corpus: the source holds 0 windows"):
        loader(store, manifest, sequence_length=512)


def test_03_a_source_of_empty_documents_is_an_error_that_names_it(stage_files, lines):
    with pytest.raises(SourceError, match=r"sources\.corpus: no documents to train on .*'empty': 3"):
        stage_files({"a.jsonl": lines("", " ", "\n")})


def test_04_one_failing_document_does_not_kill_the_job_but_too_many_do(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many + b"{broken\n"}, bad_line_tolerance=0.01)
    assert manifest.counters.documents_written == 200 and manifest.counters.skipped == {"bad_json": 1}
    (record,) = [
        json.loads(line)
        for line in unseal_lines(
            store.read_bytes(f"{manifest.output}/{manifest.quarantine[0]}"), "quarantine"
        ).splitlines()
    ]
    assert (record["file"], record["line"], record["reason"]) == ("a.jsonl", 201, "bad_json")


def test_04_bad_lines_over_the_tolerance_fail_the_source_and_publish_nothing(stage_files, store, many):
    with pytest.raises(
        SourceError, match=r"sources\.corpus: 3 of 203 lines are unreadable, over .*0\.01; see .*quarantine"
    ):
        stage_files({"a.jsonl": many + b"{broken\n" * 3}, bad_line_tolerance=0.01)
    assert not store.exists("steps/corpus/manifest.json")


def test_05_special_tokens_in_raw_text_do_not_become_control_ids(stage_files, store, tokenizer, lines):
    text = "before<|endoftext|>after<|endoftext|>"
    manifest = stage_files({"a.jsonl": lines(text)})
    (ids,) = documents(store, manifest).values()
    assert ids.count(tokenizer.eos_id) == 1 and tokenizer.decode(ids[:-1]) == text


def test_05_kept_special_tokens_are_control_ids(stage_files, store, tokenizer, lines):
    manifest = stage_files({"a.jsonl": lines("before<|endoftext|>after")}, special_tokens="keep")
    (ids,) = documents(store, manifest).values()
    assert ids.count(tokenizer.eos_id) == 2


def test_06_boundaries_are_stored_and_not_searched_for(stage_files, store, lines):
    """With kept special tokens an EOS may stand inside a document; rows still are the documents."""
    manifest = stage_files({"a.jsonl": lines("a<|endoftext|>b", "c")}, special_tokens="keep")
    assert list(documents(store, manifest)) == ["a.jsonl:1", "a.jsonl:2"]


def test_07_sources_of_different_tokenizers_never_meet_in_a_batch(
    stage_files, store, many, stage, prose_texts
):
    manifest = stage_files({"a.jsonl": many})
    other = dataclasses.replace(manifest, output="steps/other", tokenizer="another")
    other.save(store)
    for entry in manifest.shards:
        store.write_bytes(f"steps/other/{entry.key}", store.read_bytes(f"{manifest.output}/{entry.key}"))
    with pytest.raises(ValueError, match="different tokenizers"):
        WindowLoader(
            storage=store,
            outputs={"a": manifest.output, "b": "steps/other"},
            weights={"a": 1, "b": 1},
            block=2,
            seed=0,
            sequence_length=8,
            global_batch_tokens=16,
        )


def test_08_there_is_no_index_file_that_could_be_stale(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    before = store.keys("")
    first = loader(store, manifest).batch(5, 0, 1, 4)
    assert store.keys("") == before
    assert first[0].digest != loader(store, manifest, seed=1).batch(5, 0, 1, 4)[0].digest


def test_09_files_that_changed_size_are_found_before_training(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    key = f"{manifest.output}/{manifest.shards[0].key}"
    store.write_bytes(key, store.read_bytes(key) + b"more")
    with pytest.raises(ShardError, match="bytes, recorded as"):
        loader(store, manifest)


def test_10_a_long_document_is_split_over_windows_and_nothing_is_put_between(
    stage_files, store, tokenizer, lines
):
    text = " ".join(str(number) for number in range(500))
    manifest = stage_files({"a.jsonl": lines(text)})
    one = loader(store, manifest, sequence_length=16)
    count = manifest.windows(16)
    windows = np.empty((count, 16), dtype=np.uint32)
    for window in range(count):
        one.sources["corpus"].read(window, windows[window])
    assert tokenizer.decode(windows.reshape(-1)) == tokenizer.decode(tokenizer.encode(text)[: count * 16])


def test_12_all_frames_of_a_multi_frame_zst_are_read(stage_files, store, lines):
    frames = b"".join(zstandard.compress(lines(f"document {number}")) for number in range(5))
    manifest = stage_files({"a.jsonl.zst": frames})
    assert manifest.counters.documents_written == 5


def test_13_a_truncated_intermediate_file_stops_the_next_stage(stage_files, store, many, tmp_path):
    manifest = stage_files({"a.jsonl": many})
    entry = manifest.shards[0]
    sink = io.BytesIO()
    with pa.ipc.open_stream(store.read_bytes(f"{manifest.output}/{entry.key}")) as reader:
        pa.ipc.new_stream(sink, reader.schema).close()
    store.write_bytes(f"{manifest.output}/{entry.key}", sink.getvalue())
    assert datasets.Dataset.from_file(str(store.local_path(f"{manifest.output}/{entry.key}"))).num_rows == 0
    with pytest.raises(ShardError):
        manifest.verify(store)
    with pytest.raises(ShardError):
        read_documents(store, manifest.output, entry)


def test_13_a_truncated_input_commits_nothing_of_its_group(stage_files, store, lines, prose_texts):
    whole = zstandard.compress(lines(*prose_texts[:200]))
    with pytest.raises(DamagedFile, match=r"b\.jsonl\.zst: cannot be read to its end"):
        stage_files({"a.jsonl": lines("fine"), "b.jsonl.zst": whole[:-40]}, shard_tokens=1000)
    assert not store.keys("steps/corpus/groups") and not store.exists("steps/corpus/manifest.json")


def test_14_one_eos_at_the_end_and_no_bos(stage_files, store, tokenizer, lines):
    manifest = stage_files({"a.jsonl": lines("one", "two words", "")})
    for key, ids in documents(store, manifest).items():
        text = {"a.jsonl:1": "one", "a.jsonl:2": "two words"}[key]
        assert ids == [*tokenizer.encode(text), tokenizer.eos_id]


def test_14_a_kept_final_eos_is_not_doubled(stage_files, store, tokenizer, lines):
    manifest = stage_files({"a.jsonl": lines("text<|endoftext|>")}, special_tokens="keep")
    assert list(documents(store, manifest).values()) == [[*tokenizer.encode("text"), tokenizer.eos_id]]


def test_15_documents_are_always_separated(stage_files, store, tokenizer, many):
    manifest = stage_files({"a.jsonl": many})
    assert stream(store, manifest).count(tokenizer.eos_id) == 200


def test_16_the_eos_is_counted_in_every_length(stage_files, store, tokenizer, many):
    manifest = stage_files({"a.jsonl": many})
    lengths = [len(ids) for ids in documents(store, manifest).values()]
    texts = [json.loads(line)["text"] for line in many.splitlines()]
    assert sum(lengths) == manifest.tokens == sum(len(tokenizer.encode(text)) + 1 for text in texts)


def test_17_windows_are_pure_slices_without_overlap_or_invented_tokens(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    path = store.local_path(f"{manifest.output}/{manifest.shards[0].key}")
    tokens = map_tokens(path, manifest.shards[0])
    one = loader(store, manifest)
    total = manifest.windows(8)
    seen = one.tokens_at(np.arange(total))
    windows = one.order.at(np.arange(total)).window
    assert np.array_equal(seen[np.argsort(windows)].reshape(-1), tokens[: total * 8])


def test_18_the_token_after_an_eos_is_predicted_across_the_boundary_as_in_olmo(
    stage_files, store, tokenizer, many
):
    manifest = stage_files({"a.jsonl": many})
    micro = loader(store, manifest, sequence_length=32).batch(0, 0, 1, 4)[0]
    ends = (micro.input_ids[:, :-1] == tokenizer.eos_id).nonzero()
    assert len(ends) and all(
        micro.labels[row, place] == micro.input_ids[row, place + 1] for row, place in ends
    )


def test_19_windows_have_length_l_and_score_l_minus_one_tokens(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    one = loader(store, manifest)
    micro = one.batch(0, 0, 1, 4)[0]
    assert micro.input_ids.shape == micro.labels.shape == (4, 8)
    assert int((micro.labels != IGNORE_INDEX).sum()) == 4 * 7 == one.labels_per_batch
    assert manifest.windows(8) == manifest.tokens // 8 and manifest.dropped_tokens(8) < 8


def test_20_lone_surrogates_and_invalid_utf8_do_not_crash(stage_files, store, tokenizer):
    manifest = stage_files({"a.jsonl": b'{"text": "a\\ud800b"}\n{"text": "c\xffd"}\n'})
    assert [tokenizer.decode(ids[:-1]) for ids in documents(store, manifest).values()] == [
        "a\ufffdb",
        "c\ufffdd",
    ]
    assert (manifest.counters.lone_surrogates, manifest.counters.invalid_utf8) == (1, 1)


def test_21_offsets_are_64_bits_wide_so_a_shard_may_hold_more_than_2_to_31_tokens(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    batch = read_documents(store, manifest.output, manifest.shards[0])
    assert batch.schema.field("input_ids").type == pa.large_list(pa.uint32())


def test_22_the_codec_follows_the_suffix(stage_files, store, lines):
    import gzip

    manifest = stage_files(
        {
            "a.jsonl": lines("plain"),
            "b.jsonl.gz": gzip.compress(lines("gzip")),
            "c.jsonl.zst": zstandard.compress(lines("zstd")),
        }
    )
    assert list(documents(store, manifest)) == ["a.jsonl:1", "b.jsonl.gz:1", "c.jsonl.zst:1"]


def test_23_rows_keep_the_order_of_files_and_lines(stage_files, store, lines):
    files = {f"data/{name}/{part}.jsonl": lines("one", "two") for name in "ba" for part in (10, 9)}
    manifest = stage_files(files, group_bytes=1)
    keys = list(documents(store, manifest))
    assert keys == [f"{path}:{line}" for path in sorted(files) for line in (1, 2)]


def test_24_a_group_with_a_receipt_is_not_done_again(stage_files, store, lines):
    files = {f"{number}.jsonl": lines(f"text {number}") for number in range(3)}
    stage_files(files, group_bytes=1)
    shards = store.keys("steps/corpus/shards")
    before = {key: os.stat(store.path(key)).st_mtime_ns for key in shards}
    store.delete("steps/corpus/groups/g00001.json")
    store.delete("steps/corpus/manifest.json")
    stage_files(files, group_bytes=1)
    after = {key: os.stat(store.path(key)).st_mtime_ns for key in shards}
    assert [key for key in shards if before[key] != after[key]] == ["steps/corpus/shards/g00001-s000.arrow"]


@pytest.mark.parametrize("url", ["{tmp}/partial", "memory://partial"])
def test_25_a_write_that_fails_half_way_leaves_nothing(tmp_path, url):
    """Plain fsspec commits what was written before the exception."""
    storage = Storage(url.format(tmp=tmp_path))
    with pytest.raises(RuntimeError), storage.open_write("out/shard.arrow") as file:
        file.write(b"half a shard")
        raise RuntimeError("killed")
    assert storage.keys("") == []


def test_27_a_resumed_run_neither_repeats_nor_loses_a_window(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    whole = [loader(store, manifest).batch(step, 0, 1, 4)[0].input_ids for step in range(8)]
    parts = [loader(store, manifest).batch(step, 0, 1, 4)[0].input_ids for step in range(3)]
    resumed = loader(store, manifest)
    parts += [resumed.batch(step, 0, 1, 4)[0].input_ids for step in range(3, 8)]
    assert all(torch.equal(one, two) for one, two in zip(whole, parts, strict=True))


def test_28_all_ranks_derive_from_one_global_position(stage_files, store, many):
    manifest = stage_files({"a.jsonl": many})
    one = loader(store, manifest)
    for world_size in (1, 2, 4):
        batches = [one.batch(3, rank, world_size, 4)[0].input_ids for rank in range(world_size)]
        together = torch.stack(batches, dim=1).reshape(4, 8)
        assert torch.equal(together, one.batch(3, 0, 1, 4)[0].input_ids)


def test_29_a_huge_line_is_quarantined_and_a_huge_document_goes_through(stage_files, store, tokenizer, lines):
    huge = "a word or two, " * 40_000
    manifest = stage_files(
        {"a.jsonl": lines("small", huge, huge + "x" * 2_000_000)},
        max_line_bytes=1_000_000,
        bad_line_tolerance=0.5,
    )
    assert manifest.counters.skipped == {"line_too_long": 1}
    assert tokenizer.decode(documents(store, manifest)["a.jsonl:2"][:-1]) == huge


def test_31_upsampled_duplicates_stay_duplicates(stage_files, store):
    line = b'{"id": "same", "text": "a document that is upsampled"}\n'
    manifest = stage_files({"a.jsonl": line * 8, "b.jsonl": line})
    assert len(documents(store, manifest)) == manifest.counters.documents_written == 9
