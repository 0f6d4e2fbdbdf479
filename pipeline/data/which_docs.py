"""Which documents a step trained on, and which steps saw a document.

Both directions are arithmetic over the order and the shards' row offsets; nothing was logged for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.data.loader import WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.shards import ShardEntry, read_documents
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class SeenDocument:
    """A part of a document inside one window of a global batch."""

    position: int
    """In the stage's order."""
    source: str
    doc_key: str
    first_token: int
    """Of the document, from 0: where the part begins."""
    tokens: int
    document_tokens: int
    """Length of the whole document, EOS included."""


def documents_of_step(loader: WindowLoader, storage: Storage, step: int) -> Iterator[SeenDocument]:
    """Every document, whole or in part, of global batch `step` (from 0), in order of position and of tokens."""
    positions = np.arange(step * loader.windows_per_batch, (step + 1) * loader.windows_per_batch)
    draws = loader.order.at(positions)
    for position, source, window in zip(positions, draws.source, draws.window, strict=True):
        name = loader.order.sources[source]
        windows = loader.sources[name]
        shard, start = windows.locate(int(window))
        end = start + loader.sequence_length
        batch = read_documents(storage, windows.manifest.output, windows.manifest.shard(shard))
        offsets = batch.column("input_ids").offsets.to_numpy()
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, end, side="left"))
        for row in range(first, last):
            low, high = max(start, int(offsets[row])), min(end, int(offsets[row + 1]))
            yield SeenDocument(
                position=int(position),
                source=name,
                doc_key=batch.column("doc_key")[row].as_py(),
                first_token=low - int(offsets[row]),
                tokens=high - low,
                document_tokens=int(offsets[row + 1] - offsets[row]),
            )


def steps_of_document(
    loader: WindowLoader, storage: Storage, source: str, doc_key: str, total_steps: int
) -> list[int]:
    """The steps below `total_steps` whose batch holds any token of a document, ascending.

    Empty for a document that lies in a shard's dropped tail or was not yet drawn. Raises ValueError for a document
    that is in no shard of the source, saying so if it was held out.
    """
    if source not in loader.sources:
        raise ValueError(f"source {source!r} is not in the mixture; it has {', '.join(loader.sources)}")
    windows = loader.sources[source]
    manifest = windows.manifest
    found = _find(storage, manifest, manifest.shards, doc_key)
    if found is None:
        held = _find(storage, manifest, list(manifest.heldout), doc_key) is not None
        why = "it was held out for evaluation" if held else "it was skipped, or there is no such document"
        raise ValueError(f"{doc_key!r} is in no shard of source {source!r}: {why}")
    shard, first_token, last_token = found
    total = total_steps * loader.windows_per_batch
    positions = {
        position
        for window in windows.windows_of(shard, first_token, last_token)
        for position in loader.order.positions_of(source, window, total)
    }
    return sorted({position // loader.windows_per_batch for position in positions})


def _find(
    storage: Storage, manifest: Manifest, entries: list[ShardEntry], doc_key: str
) -> tuple[int, int, int] | None:
    """(shard, first token, last token) of a document. Shards are in key order, so a binary search reads few of them."""
    wanted = _sort_key(doc_key)
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        batch = read_documents(storage, manifest.output, entries[middle])
        keys = batch.column("doc_key")
        if wanted < _sort_key(keys[0].as_py()):
            high = middle
        elif wanted > _sort_key(keys[-1].as_py()):
            low = middle + 1
        else:
            rows = np.flatnonzero(keys.to_numpy(zero_copy_only=False) == doc_key)
            if not len(rows):
                return None
            offsets = batch.column("input_ids").offsets
            return middle, offsets[int(rows[0])].as_py(), offsets[int(rows[0]) + 1].as_py() - 1
    return None


def _sort_key(doc_key: str) -> tuple[str, int]:
    path, _, line = doc_key.rpartition(":")
    if not path or not line.isdigit():
        raise ValueError(f"document key {doc_key!r}: expected '<path relative to the source>:<line>'")
    return path, int(line)
