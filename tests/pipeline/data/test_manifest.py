from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.data.counters import Counters
from pipeline.data.errors import ShardError
from pipeline.data.manifest import Manifest
from pipeline.data.shards import ShardEntry
from pipeline.storage import Storage


def test_a_manifest_comes_back_as_it_was_saved(stdlib_storage, code):
    loaded = Manifest.load(stdlib_storage, code.output)
    assert loaded == code and loaded.shards == code.shards and len(code.shards) > 6
    assert loaded.shard(3) == code.shards[3]


def test_totals_add_up(code):
    counters = code.counters
    assert code.tokens == sum(entry.tokens for entry in code.shards) == counters.tokens_written
    assert sum(entry.rows for entry in code.shards) == counters.documents_written
    assert sum(entry.rows for entry in code.heldout) == counters.documents_held_out > 0
    assert counters.documents_read == (
        counters.documents_written + counters.documents_held_out + sum(counters.skipped.values())
    )
    assert code.windows(512) * 512 + code.dropped_tokens(512) == code.tokens
    assert code.windows(512) == sum(entry.tokens // 512 for entry in code.shards)


def test_verify_finds_a_missing_a_short_and_a_flipped_shard(stage_files, store, lines):
    manifest = stage_files({"a.jsonl": lines(*(f"text number {i}" for i in range(100)))}, shard_tokens=200)
    manifest.verify(store, full=True)
    key = f"{manifest.output}/{manifest.shards[1].key}"
    good = store.read_bytes(key)

    store.write_bytes(key, good[:-50] + b"x" + good[-49:])
    manifest.verify(store)
    with pytest.raises(ShardError, match=r"s001\.arrow: sha256"):
        manifest.verify(store, full=True)
    store.write_bytes(key, good[:-8])
    with pytest.raises(ShardError, match=rf"{len(good) - 8} bytes, recorded as {len(good)}"):
        manifest.verify(store)
    store.delete(key)
    with pytest.raises(ShardError, match="missing; stage the source again"):
        manifest.verify(store)


def test_a_table_that_the_manifest_does_not_vouch_for_is_refused(stage_files, store, lines):
    manifest = stage_files({"a.jsonl": lines("some text", "more text")})
    store.write_bytes(f"{manifest.output}/shards.arrow", b"something else")
    with pytest.raises(ShardError, match=r"not the table that manifest\.json vouches for"):
        Manifest.load(store, manifest.output)


def test_a_hundred_thousand_shards_load_as_columns(tmp_path):
    """A stage of six trillion tokens has 177,000 shards; none of them becomes an object on the way to a batch."""
    count = 177_000
    numbers = pa.array(range(count), pa.int64())
    table = Manifest.of_shards([])
    table = pa.table(
        {
            "key": pa.array([f"shards/g{i:05d}-s000.arrow" for i in range(count)]),
            "rows": numbers,
            "tokens": pa.array([32 << 20] * count, pa.int64()),
            "bytes": numbers,
            "sha256": pa.array(["0" * 64] * count),
            "token_offset": numbers,
        },
        schema=table.schema,
    )
    storage = Storage(str(tmp_path))
    Manifest(
        source="web", output="o", tokenizer="t", eos_id=0, table=table, heldout=(), counters=Counters()
    ).save(storage)
    loaded = Manifest.load(storage, "o")
    assert loaded.tokens == count * (32 << 20) and loaded.windows(8192) == count * 4096
    assert loaded.shard(count - 1) == ShardEntry(
        key="shards/g176999-s000.arrow",
        rows=count - 1,
        tokens=32 << 20,
        bytes=count - 1,
        sha256="0" * 64,
        token_offset=count - 1,
    )
    assert "shards" not in vars(loaded)
