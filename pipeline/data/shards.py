"""Shards: one Arrow IPC stream of exactly one record batch, one row a document.

    input_ids: large_list<uint32>   ends in one EOS, no BOS
    doc_key:   string               <path relative to the source>:<line>
    source:    string
    n_bytes:   uint32               UTF-8 bytes of the text

The child buffer of `input_ids` is one contiguous token stream. Its byte offset in the file is recorded, so that a
reader maps it (or fetches a range of it) as plain little-endian uint32 at any sequence length, without Arrow and
without a copy, and `datasets.Dataset.from_file` still opens the file. Uncompressed for that reason.

A stream that was cut at a batch boundary reads short without error in every Arrow reader, hence the recorded rows,
tokens, bytes and sha256.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.errors import ShardError
from pipeline.data.verified import hash_object
from pipeline.storage import Storage

FORMAT_VERSION = 1
TOKEN_DTYPE = np.dtype("<u4")

_FIELDS = [
    pa.field("input_ids", pa.large_list(pa.uint32())),
    pa.field("doc_key", pa.string()),
    pa.field("source", pa.string()),
    pa.field("n_bytes", pa.uint32()),
]


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """What a manifest says of one shard."""

    key: str
    """Relative to the step's output."""
    rows: int
    tokens: int
    bytes: int
    sha256: str
    token_offset: int
    """Byte offset of the token stream in the file."""


def shard_schema(tokenizer_sha256: str, eos_id: int) -> pa.Schema:
    metadata = {"ncp.format": str(FORMAT_VERSION), "ncp.tokenizer": tokenizer_sha256, "ncp.eos": str(eos_id)}
    return pa.schema(_FIELDS, metadata=metadata)


class ShardBuffer:
    """Documents on their way into one shard. Tokens lie in one growing array, which becomes the file's buffer."""

    def __init__(self, source: str, capacity_tokens: int):
        self.source = source
        self._tokens = np.empty(max(1, capacity_tokens), dtype=TOKEN_DTYPE)  # untouched pages cost nothing
        self.tokens = 0
        self._ends: list[int] = []
        self._keys: list[str] = []
        self._bytes: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, ids: NDArray[np.uint32], doc_key: str, n_bytes: int) -> None:
        """Add one document; `ids` already ends in EOS."""
        end = self.tokens + len(ids)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), dtype=TOKEN_DTYPE)
            grown[: self.tokens] = self._tokens[: self.tokens]
            self._tokens = grown
        self._tokens[self.tokens : end] = ids
        self.tokens = end
        self._ends.append(end)
        self._keys.append(doc_key)
        self._bytes.append(n_bytes)

    def clear(self) -> None:
        self.tokens = 0
        self._ends, self._keys, self._bytes = [], [], []

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        offsets[1:] = self._ends
        values = pa.Array.from_buffers(
            pa.uint32(), self.tokens, [None, pa.py_buffer(self._tokens[: self.tokens])]
        )
        ids = pa.LargeListArray.from_arrays(pa.array(offsets), values)
        columns = [ids, pa.array(self._keys, pa.string()), pa.array([self.source] * len(self), pa.string())]
        return pa.RecordBatch.from_arrays([*columns, pa.array(self._bytes, pa.uint32())], schema=schema)


def write_shard(
    storage: Storage, output: str, key: str, documents: ShardBuffer, schema: pa.Schema
) -> ShardEntry:
    """Write `{output}/{key}` and prove it: read back before it becomes visible, measured after.

    The bytes are a function of the documents and the schema alone. Raises ShardError for an empty shard (no reader
    can map an empty file) or for a write that did not arrive in full.
    """
    if not len(documents):
        raise ShardError(f"{output}/{key}: refusing to write a shard without documents")
    batch = documents.to_batch(schema)
    with storage.open_write(f"{output}/{key}") as file:
        sink = _HashingSink(file)
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(batch)
        file.flush()
        offset = _token_offset(Path(file.name), documents.tokens, f"{output}/{key}")
    entry = ShardEntry(
        key=key,
        rows=len(documents),
        tokens=documents.tokens,
        bytes=sink.count,
        sha256=sink.sha256.hexdigest(),
        token_offset=offset,
    )
    check_size(storage, output, entry)
    return entry


def check_size(storage: Storage, output: str, entry: ShardEntry) -> None:
    """Raise ShardError unless the shard is there with the recorded size."""
    where = storage.uri(f"{output}/{entry.key}")
    try:
        size = storage.size(f"{output}/{entry.key}")
    except FileNotFoundError as error:
        raise ShardError(f"{where}: named by the manifest but missing; stage the source again") from error
    if size != entry.bytes:
        raise ShardError(
            f"{where}: {size} bytes, recorded as {entry.bytes}; it was cut short; stage the source again"
        )


def check_digest(storage: Storage, output: str, entry: ShardEntry) -> None:
    """Raise ShardError unless the shard holds the very bytes that were written."""
    _same_digest(
        storage.uri(f"{output}/{entry.key}"), hash_object(storage, f"{output}/{entry.key}")[1], entry
    )


def _same_digest(where: str, found: str, entry: ShardEntry) -> None:
    if found != entry.sha256:
        raise ShardError(
            f"{where}: sha256 {found[:12]}..., recorded {entry.sha256[:12]}...; its bytes changed after they were written; "
            "stage the source again (--force of its shards step)"
        )


def map_tokens(path: Path, entry: ShardEntry) -> NDArray[np.uint32]:
    """The shard's token stream, memory-mapped read-only."""
    return np.memmap(path, dtype=TOKEN_DTYPE, mode="r", offset=entry.token_offset, shape=(entry.tokens,))


def read_tokens(
    storage: Storage, output: str, entry: ShardEntry, start: int, count: int
) -> NDArray[np.uint32]:
    """`count` tokens from `start` of the shard's stream: one ranged read. Raises ShardError if it comes back short."""
    offset = entry.token_offset + start * TOKEN_DTYPE.itemsize
    data = storage.read_range(f"{output}/{entry.key}", offset, count * TOKEN_DTYPE.itemsize)
    if len(data) != count * TOKEN_DTYPE.itemsize:
        where = storage.uri(f"{output}/{entry.key}")
        raise ShardError(
            f"{where}: {len(data)} bytes at offset {offset}, wanted {count * TOKEN_DTYPE.itemsize}"
        )
    return np.frombuffer(data, dtype=TOKEN_DTYPE)


def read_documents(storage: Storage, output: str, entry: ShardEntry) -> pa.RecordBatch:
    """The whole shard with its document columns; memory-mapped when it is local. Raises ShardError for changed bytes."""
    key = f"{output}/{entry.key}"
    path = storage.local_path(key)
    source = pa.memory_map(str(path)) if path else pa.BufferReader(storage.read_bytes(key))
    _same_digest(storage.uri(key), hashlib.sha256(source.read_buffer()).hexdigest(), entry)
    source.seek(0)
    batch = _only_batch(source, key)
    tokens = len(batch.column(0).values)
    if batch.num_rows != entry.rows or tokens != entry.tokens:
        raise ShardError(
            f"{storage.uri(key)}: {batch.num_rows} documents and {tokens} tokens, recorded as {entry.rows} and "
            f"{entry.tokens}; stage the source again"
        )
    return batch


def _only_batch(source: Any, where: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(source) as reader:
            batch = reader.read_next_batch()
            if any(True for _ in reader):
                raise ShardError(f"{where}: more than one record batch; it was not written by ncp")
            return batch
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise ShardError(f"{where}: not an Arrow stream of one record batch ({error})") from error


def _token_offset(path: Path, tokens: int, where: str) -> int:
    """Read a fresh file back and find where its token stream begins."""
    with pa.memory_map(str(path)) as mapped:
        whole = mapped.read_buffer()
        values = _only_batch(pa.BufferReader(whole), where).column(0).values
        buffer = values.buffers()[1]
        offset = buffer.address - whole.address
        if len(values) != tokens or not 0 < offset <= whole.size - tokens * TOKEN_DTYPE.itemsize:
            raise ShardError(f"{where}: read back {len(values)} tokens at offset {offset}, wrote {tokens}")
        return offset


class _HashingSink:
    """A write-only file that counts and hashes what passes."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file = file
        self.sha256 = hashlib.sha256()
        self.count = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.sha256.update(view)
        self._file.write(view)
        self.count += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()
