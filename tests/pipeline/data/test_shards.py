from __future__ import annotations

import datasets
import numpy as np
import pyarrow as pa
import pytest

from pipeline.data.errors import ShardError
from pipeline.data.shards import (
    ShardBuffer,
    map_tokens,
    read_documents,
    read_tokens,
    shard_schema,
    write_shard,
)
from pipeline.storage import Storage

SCHEMA = shard_schema("0" * 64, 0)


@pytest.fixture
def documents():
    buffer = ShardBuffer("web", 4)
    for number, length in enumerate((3, 1, 70_000, 5)):
        ids = np.arange(1, length + 1, dtype=np.uint32) + number
        ids[-1] = 0
        buffer.append(ids, f"data/a.jsonl:{number + 1}", 10 * length)
    return buffer


@pytest.fixture(params=["local", "memory"])
def any_store(request, tmp_path):
    return Storage(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}")


def test_the_stream_is_where_the_entry_says_and_documents_come_back(any_store, documents):
    entry = write_shard(any_store, "out", "shards/a.arrow", documents, SCHEMA)
    assert (entry.rows, entry.tokens) == (4, 70_009)
    assert entry.bytes == any_store.size("out/shards/a.arrow")

    batch = read_documents(any_store, "out", entry)
    rows = batch.column("input_ids").to_pylist()
    assert [len(row) for row in rows] == [3, 1, 70_000, 5] and all(row[-1] == 0 for row in rows)
    assert batch.column("doc_key").to_pylist()[2] == "data/a.jsonl:3"
    assert batch.column("n_bytes").to_pylist() == [30, 10, 700_000, 50]
    stream = np.concatenate(rows)
    assert np.array_equal(read_tokens(any_store, "out", entry, 0, entry.tokens), stream)
    assert np.array_equal(read_tokens(any_store, "out", entry, 5, 1000), stream[5:1005])


def test_a_local_stream_is_mapped_and_not_copied(tmp_path, documents):
    store = Storage(str(tmp_path))
    entry = write_shard(store, "out", "a.arrow", documents, SCHEMA)
    tokens = map_tokens(tmp_path / "out/a.arrow", entry)
    assert isinstance(tokens, np.memmap) and tokens.dtype == np.uint32
    assert np.array_equal(tokens, read_tokens(store, "out", entry, 0, entry.tokens))


def test_huggingface_datasets_opens_a_shard(tmp_path, documents):
    write_shard(Storage(str(tmp_path)), "out", "a.arrow", documents, SCHEMA)
    dataset = datasets.Dataset.from_file(str(tmp_path / "out/a.arrow"))
    assert dataset.column_names == ["input_ids", "doc_key", "source", "n_bytes"]
    assert dataset[1] == {"input_ids": [0], "doc_key": "data/a.jsonl:2", "source": "web", "n_bytes": 10}


def test_the_format_is_one_batch_of_the_contract_with_its_metadata(tmp_path, documents):
    write_shard(Storage(str(tmp_path)), "out", "a.arrow", documents, SCHEMA)
    with pa.ipc.open_stream(str(tmp_path / "out/a.arrow")) as reader:
        assert reader.schema.field("input_ids").type == pa.large_list(pa.uint32())
        assert reader.schema.field("n_bytes").type == pa.uint32()
        assert reader.schema.metadata == {b"ncp.format": b"1", b"ncp.tokenizer": b"0" * 64, b"ncp.eos": b"0"}
        assert len(list(reader)) == 1


def test_the_same_documents_give_the_same_bytes_also_from_a_reused_buffer(tmp_path, documents):
    store = Storage(str(tmp_path))
    one = write_shard(store, "out", "a.arrow", documents, SCHEMA)
    documents.clear()
    for number, length in enumerate((3, 1, 70_000, 5)):
        ids = np.arange(1, length + 1, dtype=np.uint32) + number
        ids[-1] = 0
        documents.append(ids, f"data/a.jsonl:{number + 1}", 10 * length)
    two = write_shard(store, "out", "b.arrow", documents, SCHEMA)
    assert one.sha256 == two.sha256


def test_an_empty_shard_is_never_written(tmp_path):
    with pytest.raises(ShardError, match="without documents"):
        write_shard(Storage(str(tmp_path)), "out", "a.arrow", ShardBuffer("web", 1), SCHEMA)
    assert Storage(str(tmp_path)).keys("") == []


def test_a_range_past_the_end_is_an_error_and_not_a_short_array(any_store, documents):
    entry = write_shard(any_store, "out", "a.arrow", documents, SCHEMA)
    with pytest.raises(ShardError, match="bytes at offset"):
        read_tokens(any_store, "out", entry, entry.tokens - 2, 100_000)


def test_a_stream_cut_at_a_batch_boundary_is_refused(tmp_path, documents):
    """Every Arrow reader takes it for an empty table; only the record of its digest can tell."""
    store = Storage(str(tmp_path))
    entry = write_shard(store, "out", "a.arrow", documents, SCHEMA)
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SCHEMA).close()
    store.write_bytes("out/a.arrow", sink.getvalue().to_pybytes())
    assert datasets.Dataset.from_file(str(tmp_path / "out/a.arrow")).num_rows == 0
    with pytest.raises(ShardError, match="its bytes changed after they were written"):
        read_documents(store, "out", entry)
