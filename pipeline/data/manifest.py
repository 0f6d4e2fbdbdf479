"""The manifest of a staged source: which shards there are and what must be in them.

`{output}/manifest.json` holds the totals; `{output}/shards.arrow` one row a shard. Columns and not records, because
the largest stages have 177,000 shards, and a loader must be able to start at once.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.counters import Counters
from pipeline.data.errors import ShardError
from pipeline.data.objects import list_objects
from pipeline.data.shards import ShardEntry
from pipeline.data.verified import hash_object
from pipeline.storage import Storage

MANIFEST_FORMAT = 1

_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("token_offset", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A staged source. Shards are in group order, and in document order inside a group."""

    source: str
    output: str
    """Key prefix of the step's output; shard keys are relative to it."""
    tokenizer: str
    """sha256 of the tokenizer."""
    eos_id: int
    table: pa.Table
    """One row per shard, columns as ShardEntry."""
    heldout: tuple[ShardEntry, ...]
    counters: Counters
    quarantine: tuple[str, ...] = ()
    cleaning: Mapping[str, Any] | None = None
    """Counts of the cleaning that came before, by filter and reason (pipeline.data.cleaning); None without one."""

    @staticmethod
    def of_shards(shards: Sequence[ShardEntry]) -> pa.Table:
        return pa.table(
            {name: [getattr(entry, name) for entry in shards] for name in _COLUMNS.names}, schema=_COLUMNS
        )

    @cached_property
    def shards(self) -> list[ShardEntry]:
        return [ShardEntry(**row) for row in self.table.to_pylist()]

    @cached_property
    def shard_tokens(self) -> NDArray[np.int64]:
        return self.table.column("tokens").to_numpy()

    @property
    def tokens(self) -> int:
        return int(self.shard_tokens.sum())

    @property
    def heldout_tokens(self) -> int:
        return sum(entry.tokens for entry in self.heldout)

    def shard(self, index: int) -> ShardEntry:
        return ShardEntry(**{name: self.table.column(name)[index].as_py() for name in _COLUMNS.names})

    def windows(self, sequence_length: int) -> int:
        """Whole windows in all shards; each shard's tail is dropped."""
        return int((self.shard_tokens // sequence_length).sum())

    def dropped_tokens(self, sequence_length: int) -> int:
        """Tokens in the tails of the shards, which no window holds."""
        return int((self.shard_tokens % sequence_length).sum())

    def save(self, storage: Storage) -> None:
        """Write the table, then `manifest.json`, which vouches for it."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, _COLUMNS) as writer:
            writer.write_table(self.table.combine_chunks())
        table = sink.getvalue()
        storage.write_bytes(f"{self.output}/shards.arrow", table)
        record: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            "source": self.source,
            "tokenizer": self.tokenizer,
            "eos_id": self.eos_id,
            "shards": {"rows": self.table.num_rows, "sha256": hashlib.sha256(table).hexdigest()},
            "tokens": self.tokens,
            "heldout": [
                {item.name: getattr(entry, item.name) for item in fields(entry)} for entry in self.heldout
            ],
            "counters": self.counters.to_json(),
            "quarantine": list(self.quarantine),
            **({} if self.cleaning is None else {"cleaning": dict(self.cleaning)}),
        }
        storage.write_json(f"{self.output}/manifest.json", record)

    @staticmethod
    def load(storage: Storage, output: str) -> Manifest:
        """Raises FileNotFoundError if there is none, ShardError if it is not of this format or its table is not."""
        key = f"{output}/manifest.json"
        record = storage.read_json(key)
        if record.get("format") != MANIFEST_FORMAT:
            raise ShardError(
                f"{storage.uri(key)}: manifest format {record.get('format')!r}, not {MANIFEST_FORMAT}"
            )
        data = storage.read_bytes(f"{output}/shards.arrow")
        if hashlib.sha256(data).hexdigest() != record["shards"]["sha256"]:
            raise ShardError(
                f"{storage.uri(f'{output}/shards.arrow')}: not the table that manifest.json vouches for"
            )
        return Manifest(
            source=record["source"],
            output=output,
            tokenizer=record["tokenizer"],
            eos_id=record["eos_id"],
            table=pa.ipc.open_stream(data).read_all(),
            heldout=tuple(ShardEntry(**entry) for entry in record["heldout"]),
            counters=Counters.from_json(record["counters"]),
            quarantine=tuple(record["quarantine"]),
            cleaning=record.get("cleaning"),
        )

    def verify(self, storage: Storage, *, full: bool = False) -> None:
        """Check every shard's size against one listing, and with `full` its sha256 by reading it.

        Raises ShardError at the first that is missing or differs.
        """
        found = list_objects(storage, self.output)
        keys = [*self.table["key"].to_pylist(), *(entry.key for entry in self.heldout)]
        sizes = [*self.table["bytes"].to_pylist(), *(entry.bytes for entry in self.heldout)]
        for key, size in zip(keys, sizes, strict=True):
            where = storage.uri(f"{self.output}/{key}")
            if key not in found:
                raise ShardError(f"{where}: named by the manifest but missing; stage the source again")
            if found[key].size != size:
                raise ShardError(
                    f"{where}: {found[key].size} bytes, recorded as {size}; it was cut short or replaced; "
                    "stage the source again"
                )
        if full:
            for entry in (*self.shards, *self.heldout):
                _, digest = hash_object(storage, f"{self.output}/{entry.key}")
                if digest != entry.sha256:
                    where = storage.uri(f"{self.output}/{entry.key}")
                    raise ShardError(f"{where}: sha256 {digest[:12]}..., recorded {entry.sha256[:12]}...")
