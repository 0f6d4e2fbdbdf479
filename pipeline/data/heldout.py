"""Held-out documents of a staged source, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.data.manifest import Manifest
from pipeline.data.shards import read_documents
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class HeldoutDocument:
    source: str
    doc_key: str
    input_ids: NDArray[np.uint32]
    """Ends in EOS."""
    n_bytes: int
    """UTF-8 bytes of the text, the denominator of bits per byte."""


def heldout_documents(
    storage: Storage, output: str, *, max_tokens: int | None = None
) -> Iterator[HeldoutDocument]:
    """Held-out documents in group and document order, whole documents only, as long as they fit in `max_tokens`.

    The first document is always given, even when it alone is longer.
    """
    manifest = Manifest.load(storage, output)
    used = 0
    for entry in manifest.heldout:
        batch = read_documents(storage, output, entry)
        ids, offsets = batch.column(0).values.to_numpy(), batch.column(0).offsets.to_numpy()
        for row in range(batch.num_rows):
            tokens = ids[offsets[row] : offsets[row + 1]]
            if max_tokens is not None and used and used + len(tokens) > max_tokens:
                return
            used += len(tokens)
            yield HeldoutDocument(
                source=manifest.source,
                doc_key=batch.column(1)[row].as_py(),
                input_ids=tokens,
                n_bytes=batch.column(3)[row].as_py(),
            )
