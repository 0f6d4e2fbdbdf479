"""One group of files -> its shards and its receipt. A pure function of (files, tokenizer, settings); no Ray.

Memory is bounded by one open shard, one batch of texts and the longest line. Order of writing: shards and quarantine
first, each verified, then the receipt. A group killed anywhere before its receipt is simply done again, to the
same bytes under the same names.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculum.schema import DataSpec
from pipeline.data.counters import Counters
from pipeline.data.groups import Group
from pipeline.data.heldout_rule import is_held_out
from pipeline.data.quarantine import Quarantine
from pipeline.data.readers import Document, Reader
from pipeline.data.shards import ShardBuffer, ShardEntry, shard_schema, write_shard
from pipeline.data.token_files import TokenDocument, is_companion, is_token_file, token_documents
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

BATCH_CHARS = 1 << 20
"""Documents are tokenized in batches of about this many characters."""


@dataclass(frozen=True, kw_only=True)
class GroupReceipt:
    """Proof that a group is done: what it was made from and what it made."""

    group: int
    digest: str
    tokenizer: str
    shards: tuple[ShardEntry, ...]
    heldout: tuple[ShardEntry, ...]
    counters: Counters
    quarantine: str | None
    """Key of the bad lines, relative to the output; None when there are none."""

    def to_json(self) -> dict[str, Any]:
        record = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        record["shards"] = [dataclasses.asdict(entry) for entry in self.shards]
        record["heldout"] = [dataclasses.asdict(entry) for entry in self.heldout]
        record["counters"] = self.counters.to_json()
        return record

    @staticmethod
    def from_json(record: dict[str, Any]) -> GroupReceipt:
        return GroupReceipt(
            **{
                **record,
                "shards": tuple(ShardEntry(**entry) for entry in record["shards"]),
                "heldout": tuple(ShardEntry(**entry) for entry in record["heldout"]),
                "counters": Counters.from_json(record["counters"]),
            }
        )


def receipt_key(output: str, group: Group) -> str:
    return f"{output}/groups/{group.name}.json"


def load_receipt(storage: Storage, output: str, group: Group, tokenizer_sha256: str) -> GroupReceipt | None:
    """The receipt of a finished group, or None. Raises ValueError if it is of other content or another tokenizer."""
    key = receipt_key(output, group)
    if not storage.exists(key):
        return None
    receipt = GroupReceipt.from_json(storage.read_json(key))
    if (receipt.digest, receipt.tokenizer) != (group.digest, tokenizer_sha256):
        raise ValueError(
            f"{storage.uri(key)}: made from other content or another tokenizer; delete {output!r}"
        )
    return receipt


def tokenize_group(
    *,
    storage: Storage,
    output: str,
    root: Storage,
    source: str,
    group: Group,
    special_tokens: str,
    data: DataSpec,
    tokenizer: Tokenizer,
    token_dtype: str = "",
    text_key: str = "text",
    id_key: str = "",
) -> GroupReceipt:
    """Tokenize a group, write its shards below `output`, then its receipt, and return that.

    `root` is what the files' paths are relative to. Raises DamagedFile or ChangedSincePinned for a file that cannot be
    read as pinned; then the group has no receipt.
    """
    writer = _GroupWriter(storage, output, source, group, special_tokens, data, tokenizer)
    reader = Reader(
        max_line_bytes=data.max_line_bytes,
        counters=writer.counters,
        quarantine=Quarantine(),
        text_key=text_key,
        id_key=id_key,
    )
    batch: list[Document] = []
    chars = 0
    for file in group.files:
        if is_companion(file.path):
            continue
        if is_token_file(file.path):
            writer.write(batch)
            batch, chars = [], 0
            for tokens in token_documents(root, file, group.files, tokenizer, token_dtype):
                writer.take(tokens)
            continue
        for document in reader.documents(root, file):
            batch.append(document)
            chars += len(document.text)
            if chars >= BATCH_CHARS:
                writer.write(batch)
                batch, chars = [], 0
    writer.write(batch)
    writer.close()

    quarantine = None
    if len(reader.quarantine):
        quarantine = f"quarantine/{group.name}.jsonl"
        reader.quarantine.write(storage, f"{output}/{quarantine}")
    writer.counters.check(f"{source} {group.name}")
    receipt = GroupReceipt(
        group=group.number,
        digest=group.digest,
        tokenizer=tokenizer.sha256,
        shards=tuple(writer.shards),
        heldout=tuple(writer.heldout_shards),
        counters=writer.counters,
        quarantine=quarantine,
    )
    storage.write_json(receipt_key(output, group), receipt.to_json())
    return receipt


class _GroupWriter:
    """Tokenizes batches of documents and closes shards as they fill."""

    def __init__(self, storage, output, source, group, special_tokens, data, tokenizer):
        self.counters = Counters()
        self.shards: list[ShardEntry] = []
        self.heldout_shards: list[ShardEntry] = []
        self._storage, self._output, self._group = storage, output, group
        self._special_tokens, self._data, self._tokenizer = special_tokens, data, tokenizer
        self._schema = shard_schema(tokenizer.sha256, tokenizer.eos_id)
        self._open = ShardBuffer(source, data.shard_tokens)
        self._heldout = ShardBuffer(source, 1 << 16)

    def write(self, batch: list[Document]) -> None:
        cuts_before = self._tokenizer.forced_cuts
        encoded = self._tokenizer.encode_batch([document.text for document in batch], self._special_tokens)
        self.counters.forced_cuts += self._tokenizer.forced_cuts - cuts_before
        for document, ids in zip(batch, encoded, strict=True):
            self._append(document.text, ids, document.key)

    def take(self, document: TokenDocument) -> None:
        """A document that came as tokens."""
        self.counters.documents_read += 1
        text = self._tokenizer.decode(document.ids, skip_special_tokens=True)
        if not text or text.isspace():
            self.counters.skip("empty")
        else:
            self._append(text, document.ids, document.key)

    def _append(self, text: str, ids: NDArray[np.uint32], key: str) -> None:
        eos = np.uint32(self._tokenizer.eos_id)
        if (
            not len(ids) or ids[-1] != eos
        ):  # a text with kept special tokens, or a token file, may bring its own
            ids = np.append(ids, eos)
        n_bytes = len(text.encode())
        if is_held_out(text, self._data.heldout_fraction):
            self._heldout.append(ids, key, n_bytes)
            self.counters.documents_held_out += 1
            self.counters.tokens_held_out += len(ids)
            self.counters.bytes_held_out += n_bytes
            return
        self._open.append(ids, key, n_bytes)
        self.counters.documents_written += 1
        self.counters.tokens_written += len(ids)
        self.counters.bytes_written += n_bytes
        if self._open.tokens >= self._data.shard_tokens:
            self._close_shard()

    def close(self) -> None:
        if len(self._open):
            self._close_shard()
        if len(self._heldout):
            key = f"heldout/{self._group.name}.arrow"
            entry = write_shard(self._storage, self._output, key, self._heldout, self._schema)
            self.heldout_shards.append(entry)

    def _close_shard(self) -> None:
        key = f"shards/{self._group.name}-s{len(self.shards):03d}.arrow"
        self.shards.append(write_shard(self._storage, self._output, key, self._open, self._schema))
        self._open.clear()
