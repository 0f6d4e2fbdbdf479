"""Per-document chunk grids inside a window, in fixed shapes (`packing: doc`).

The window and its tokens are those of `packing: stream`; nothing is padded and nothing is accounted differently. What
changes is the grid on which tokens are pooled into concepts: anchored at each document's start instead of at the
window's (NCP spec 3). A document cut by the window's left edge starts anew there. With document start s and length n
in the window, chunk j holds tokens s + jk .. s + jk + k-1 for j < floor(n/k); up to k-1 tail tokens are in no chunk.
All of it is gather indices, so the model sees the same shapes whatever the documents are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class DocumentGrid:
    """Gather indices for windows [B, T] with chunks of k tokens; C = T // k is the most chunks a window can have."""

    document: NDArray[np.int32]
    """[B, T]: number of the token's document in the window, from 0. Attention stays inside equal numbers."""
    position: NDArray[np.int32]
    """[B, T]: place of the token in its document, from 0; the rotary position."""
    chunk_tokens: NDArray[np.int64]
    """[B, C, k]: the tokens of each chunk; zeros where there is no chunk."""
    chunk_valid: NDArray[np.bool_]
    """[B, C]: whether there is a chunk. Chunks come first, in order of their tokens."""
    chunk_document: NDArray[np.int32]
    """[B, C]: the document of each chunk; -1 where there is none."""
    chunk_position: NDArray[np.int32]
    """[B, C]: number of the chunk in its document, from 0; the rotary position of its concept."""
    pair_valid: NDArray[np.bool_]
    """[B, C]: whether chunk c and c+1 are neighbours in one document, so that c predicts c+1."""
    concept_of_token: NDArray[np.int64]
    """[B, T]: the chunk whose *predicted successor* is injected at the token, after repeat and causal shift: for place p
    of a document that is chunk floor((p+1)/k) - 1 of it; -1 where no chunk of the document is complete yet."""


def document_grid(input_ids: NDArray[np.integer], eos_id: int, chunk_size: int) -> DocumentGrid:
    """The grid of windows [B, T]; every EOS ends a document. Raises ValueError unless chunk_size divides T."""
    batch, length = input_ids.shape
    if chunk_size < 1 or length % chunk_size:
        raise ValueError(f"chunk_size: {chunk_size} does not divide the sequence length {length}")
    places = np.arange(length)
    starts_here = np.zeros((batch, length), dtype=bool)
    starts_here[:, 0] = True
    starts_here[:, 1:] = input_ids[:, :-1] == eos_id
    document = np.cumsum(starts_here, axis=1) - 1
    start = np.maximum.accumulate(np.where(starts_here, places, 0), axis=1)
    position = places - start

    # A token closes a chunk where its place in the document is the last of one; chunks are numbered in that order.
    closes = (position + 1) % chunk_size == 0
    closed = np.cumsum(closes, axis=1)
    rows, ends = np.nonzero(closes)
    numbers = closed[rows, ends] - 1

    chunks = length // chunk_size
    chunk_tokens = np.zeros((batch, chunks, chunk_size), dtype=np.int64)
    chunk_valid = np.zeros((batch, chunks), dtype=bool)
    chunk_document = np.full((batch, chunks), -1, dtype=np.int32)
    chunk_position = np.zeros((batch, chunks), dtype=np.int32)
    chunk_tokens[rows, numbers] = ends[:, None] - chunk_size + 1 + np.arange(chunk_size)
    chunk_valid[rows, numbers] = True
    chunk_document[rows, numbers] = document[rows, ends]
    chunk_position[rows, numbers] = position[rows, ends] // chunk_size

    pair_valid = np.zeros((batch, chunks), dtype=bool)
    pair_valid[:, :-1] = chunk_valid[:, 1:] & (chunk_document[:, 1:] == chunk_document[:, :-1])
    begun = position + 1 >= chunk_size
    return DocumentGrid(
        document=document.astype(np.int32),
        position=position.astype(np.int32),
        chunk_tokens=chunk_tokens,
        chunk_valid=chunk_valid,
        chunk_document=chunk_document,
        chunk_position=chunk_position,
        pair_valid=pair_valid,
        concept_of_token=np.where(begun, closed - 1, -1).astype(np.int64),
    )
