from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import ShardError
from pipeline.data.inspect import inspect, open_output, stats, verify
from pipeline.data.pins import make_pin
from pipeline.data.shards import ShardBuffer, shard_schema, write_shard
from pipeline.data.tokenizer import Tokenizer, train_bpe


def test_inspect_shows_the_beginnings_of_documents_from_all_over(stdlib_storage, code, tokenizer):
    manifest, samples = inspect(stdlib_storage, code.output, samples=3, tokenizer=tokenizer)
    assert manifest == code and len({sample.doc_key for sample in samples}) == 3
    assert all(sample.text and len(sample.input_ids) == 64 for sample in samples)
    assert samples[0].doc_key == "data/code/part-00000.jsonl.zst:1"
    assert len(inspect(stdlib_storage, code.output, samples=1000)[1]) == len(code.shards)


def test_an_intact_source_has_no_problems(stdlib_storage, prose, tokenizer):
    assert verify(stdlib_storage, prose.output, tokenizer=tokenizer) == []


@pytest.fixture
def manifest(stage_files, lines):
    return stage_files({"a.jsonl": lines(*(f"text number {i}" for i in range(60)))}, shard_tokens=100)


def test_every_problem_is_listed_and_not_only_the_first(store, manifest):
    first, second = (f"{manifest.output}/{entry.key}" for entry in manifest.shards[:2])
    store.write_bytes(first, store.read_bytes(first)[:-4])
    content = store.read_bytes(second)
    store.write_bytes(second, content[:-100] + b"?" + content[-99:])
    problems = verify(store, manifest.output)
    assert len(problems) == 2 and "cut short" in problems[0] and "sha256" in problems[1]


def test_a_wrong_offset_is_found_although_all_hashes_are_right(store, manifest):
    shards = [dataclasses.replace(entry, token_offset=entry.token_offset + 4) for entry in manifest.shards]
    dataclasses.replace(manifest, table=manifest.of_shards(shards)).save(store)
    assert "the token stream is not at offset" in verify(store, manifest.output)[0]


def test_a_shard_of_another_tokenizer_or_without_eos_is_found(store, manifest):
    buffer = ShardBuffer("corpus", 8)
    buffer.append(np.array([5, 6, 7], dtype=np.uint32), "a.jsonl:1", 3)
    for schema, message in (
        (shard_schema("another", manifest.eos_id), "schema metadata"),
        (shard_schema(manifest.tokenizer, manifest.eos_id), "does not end in EOS"),
    ):
        entry = write_shard(store, manifest.output, manifest.shards[0].key, buffer, schema)
        dataclasses.replace(manifest, table=manifest.of_shards([entry])).save(store)
        assert message in verify(store, manifest.output)[0]


def test_accounts_that_do_not_add_up_are_found(store, manifest):
    record = store.read_json(f"{manifest.output}/manifest.json")
    record["counters"]["documents_written"] -= 1
    store.write_json(f"{manifest.output}/manifest.json", record)
    assert any(
        "60 documents read but 59 accounted for" in problem for problem in verify(store, manifest.output)
    )


def test_a_place_without_a_manifest_is_said_to_have_none(tmp_path, store, manifest):
    storage, output = open_output(store.uri(manifest.output) + "/")
    assert output == "corpus" and verify(storage, output) == []
    with pytest.raises(ShardError, match=r"nowhere: no manifest\.json there"):
        open_output(str(tmp_path / "nowhere"))


def test_statistics_count_what_is_there(store, manifest, tokenizer):
    found = stats(store, manifest.output)
    texts = [f"text number {i}" for i in range(60)]
    lengths = sorted(len(tokenizer.encode(text)) + 1 for text in texts)
    assert (found.documents, found.tokens) == (60, manifest.tokens)
    assert found.text_bytes == sum(map(len, texts)) == manifest.counters.bytes_written
    assert found.tokens_per_document["min"] == lengths[0] and found.tokens_per_document["max"] == lengths[-1]
    assert dict(found.most_common)[tokenizer.eos_id] == 60
    json.dumps(dataclasses.asdict(found))


def test_the_wrong_tokenizer_is_refused_before_it_decodes_nonsense(stdlib_storage, code, tokenizer):
    from pipeline.data.tokenizer import Tokenizer, train_bpe

    other = Tokenizer(train_bpe(["another tokenizer"], 300))
    with pytest.raises(ShardError, match="staged with tokenizer"):
        inspect(stdlib_storage, code.output, tokenizer=other)


def _stage_one(stage, store, tokenizer, text: str, special_tokens: str = "text") -> None:
    store.write_bytes("raw/a.jsonl", json.dumps({"text": text}).encode() + b"\n")
    pin = make_pin(store, "web", SourceSpec(), store.uri("raw"))
    stage(store, "steps/web", pin, tokenizer, DataSpec(heldout_fraction=0.0), special_tokens)


@pytest.mark.parametrize("text", ["a<|endoftext|>b", "ends in one<|endoftext|>", "<|endoftext|>", "plain"])
@pytest.mark.parametrize("special_tokens", ["keep", "text"])
def test_kept_control_tokens_are_no_damage(stage, store, tokenizer, text, special_tokens):
    _stage_one(stage, store, tokenizer, text, special_tokens)
    assert verify(store, "steps/web", tokenizer=tokenizer) == []


def test_a_normal_form_of_other_length_is_no_damage(stage, store, tokenizer):
    config = json.loads(tokenizer.data)
    config["normalizer"] = {"type": "NFC"}
    nfc = Tokenizer(json.dumps(config).encode())
    _stage_one(stage, store, nfc, "cafe\u0301 au lait, A\u030a")
    assert verify(store, "steps/web", tokenizer=nfc) == []


def test_another_tokenizer_is_said_to_be_another_and_not_damage(stage, store, tokenizer):
    _stage_one(stage, store, tokenizer, "some text")
    other = Tokenizer(train_bpe(["other words"], 300))
    (problem,) = verify(store, "steps/web", tokenizer=other)
    assert f"staged with tokenizer {tokenizer.sha256[:12]}, not {other.sha256[:12]}" in problem
