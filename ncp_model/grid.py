"""Where chunks lie in a sequence, and which predicted concept each token may read (docs/model.md 2.3, 2.6, 3).

Chunk j covers tokens jk .. jk+k-1 of its document. Token t (counted within its document) reads the concept predicted
from chunks 0 .. j(t) with j(t) = floor((t+1)/k) - 1, the largest j whose last token is not after t; before the first
chunk is complete it reads a zero row. "Rows" below are M + 1 per sequence: the zero row, then one per chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from curriculum.model_spec import ModelSpec
from ncp_model.layers import AttentionPattern, additive_mask, rotary_angles, visibility


class AlignedGrid:
    """One grid for the whole sequence, anchored at its first token (`packing: stream`). T % k tokens stay unpooled."""

    def __init__(self, length: int, chunk_size: int) -> None:
        self.length, self.chunk_size = length, chunk_size
        self.chunks = length // chunk_size

    def pool(self, x: Tensor) -> Tensor:
        """Chunk means of x [B, T, d] -> [B, M, d], accumulated in at least float32."""
        tokens = x[:, : self.chunks * self.chunk_size].unflatten(1, (self.chunks, self.chunk_size))
        return _mean(tokens)

    def spread(self, rows: Tensor) -> Tensor:
        """Rows [B, M + 1, d] -> the row each token reads, [B, T, d]."""
        return self._tokens(rows.unsqueeze(2).expand(-1, -1, self.chunk_size, -1))

    def add_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x + spread(rows): x [B, T, d], rows [B, M + 1, d]."""
        if torch.compiler.is_compiling():
            return x + self.spread(rows)
        return _AddRows.apply(x, rows, self.chunk_size)

    def by_row(self, x: Tensor) -> Tensor:
        """x [B, T, n] -> [B, M + 1, k, n]: each row's readers; slots without a token are zero."""
        slots = (self.chunks + 1) * self.chunk_size
        return F.pad(x, (0, 0, 1, slots - self.length - 1)).unflatten(1, (self.chunks + 1, self.chunk_size))

    def by_token(self, x: Tensor) -> Tensor:
        """Inverse of `by_row`: [B, M + 1, k, n] -> [B, T, n]."""
        return self._tokens(x)

    def _tokens(self, slots: Tensor) -> Tensor:
        return slots.flatten(1, 2)[:, 1 : self.length + 1]

    def patterns(self, spec: ModelSpec, like: Tensor) -> tuple[AttentionPattern, AttentionPattern]:
        """Attention patterns of the token towers and of the Concept Module, for states on the device and in the dtype of `like`."""
        tokens = torch.arange(self.length, device=like.device)
        concepts = torch.arange(self.chunks, device=like.device)
        return (
            _pattern(spec, like, tokens, tokens),
            _pattern(spec, like, concepts, concepts * spec.concept.rope_stride),
        )

    def valid_chunks(self, token_valid: Tensor) -> Tensor:
        """Boolean [B, M]: chunks all of whose tokens are valid, from token_valid [B, T]."""
        return (
            token_valid[:, : self.chunks * self.chunk_size]
            .unflatten(1, (self.chunks, self.chunk_size))
            .all(-1)
        )

    def consecutive(self, chunk_valid: Tensor) -> Tensor:
        """Boolean [B, M - 1]: whether (j, j+1) is a prediction pair, from chunk_valid [B, M]."""
        return chunk_valid[:, :-1] & chunk_valid[:, 1:]


def _row_segments(x: Tensor, rows: Tensor, k: int) -> list[tuple[Tensor, Tensor]]:
    """Views of x [B, T, d] as [B, rows, readers, d] beside the rows read there: the zero row, full rows, a ragged one."""
    length = x.shape[1]
    first = min(k - 1, length)
    whole = (length - first) // k
    end = first + whole * k
    return [
        (x[:, :first].unsqueeze(1), rows[:, :1]),
        (x[:, first:end].unflatten(1, (whole, k)), rows[:, 1 : whole + 1]),
        (x[:, end:].unsqueeze(1), rows[:, whole + 1 : whole + 2]),
    ]


class _AddRows(torch.autograd.Function):
    """x + spread(rows) without repeating the rows, forward or backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, k: int) -> Tensor:
        ctx.k, ctx.rows_shape = k, rows.shape
        result = torch.empty_like(x)
        pairs = zip(_row_segments(x, rows, k), _row_segments(result, rows, k), strict=True)
        for (tokens, row), (out, _) in pairs:
            if out.numel():
                torch.add(tokens, row.unsqueeze(2), out=out)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_rows = gradient.new_zeros(ctx.rows_shape)
        for tokens, row in _row_segments(gradient, grad_rows, ctx.k):
            if tokens.numel():
                torch.sum(tokens, dim=2, out=row)
        return gradient, grad_rows, None


class DocumentGrid:
    """A grid per document (`packing: doc`), all shapes fixed by B, T and k.

    `doc_starts` int64 [B, T] holds for each position the position of its document's first token (so [0,0,0,3,3] is a
    document of three tokens and one of two). Attention, RoPE, chunks and prediction pairs stay inside a document; the
    n % k last tokens of a document of n are not pooled. Chunks are numbered by the order in which they end; there are
    at most M = T // k, and unused numbers have `exists` False and touch nothing.
    """

    def __init__(self, doc_starts: Tensor, chunk_size: int) -> None:
        batch, length = doc_starts.shape
        device = doc_starts.device
        self.chunk_size, self.chunks = chunk_size, length // chunk_size
        self.doc_starts = doc_starts
        index = torch.arange(length, device=device)
        self.positions = index - doc_starts
        ends_chunk = (self.positions + 1) % chunk_size == 0
        completed = ends_chunk.cumsum(1)  # chunks complete in the whole row, up to and including each token
        row = torch.where(self.positions >= chunk_size - 1, completed, 0)

        # The token that ends each chunk; one spare slot swallows the tokens that end none.
        slot = torch.where(ends_chunk, completed - 1, self.chunks)
        ends = torch.full((batch, self.chunks + 1), chunk_size - 1, device=device)
        ends = ends.scatter(1, slot, index.expand(batch, -1))[:, : self.chunks]
        number = torch.arange(self.chunks, device=device)
        self.exists = number < completed[:, -1:]
        ends = torch.where(self.exists, ends, chunk_size - 1)
        self.chunk_doc = torch.where(self.exists, doc_starts.gather(1, ends), -1)
        self.chunk_positions = (ends - self.chunk_doc) // chunk_size * self.exists

        batch_index = torch.arange(batch, device=device)[:, None]
        offset = torch.arange(chunk_size, device=device)
        first = ends - chunk_size + 1
        self._members = (batch_index[:, :, None] * length + first[:, :, None] + offset).flatten()
        # Row m's readers are the k tokens from its chunk's end on; those of the zero row are never contracted.
        readers = (ends[:, :, None] + offset).clamp(max=length - 1)
        self._readers = (batch_index[:, :, None] * length + readers).flatten()
        since_end = torch.where(row > 0, self.positions - (chunk_size - 1), 0) % chunk_size
        self._slot = (batch_index * (self.chunks + 1) * chunk_size + row * chunk_size + since_end).flatten()
        self._row = (batch_index * (self.chunks + 1) + row).flatten()
        self._shape = (batch, length)

    def pool(self, x: Tensor) -> Tensor:
        """As AlignedGrid.pool; chunks that do not exist hold the mean of some other tokens."""
        return _mean(self._select(x, self._members, (self._shape[0], self.chunks, self.chunk_size)))

    def spread(self, rows: Tensor) -> Tensor:
        """As AlignedGrid.spread."""
        return self._select(rows, self._row, self._shape)

    def add_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """As AlignedGrid.add_rows."""
        return x + self.spread(rows)

    def by_row(self, x: Tensor) -> Tensor:
        """As AlignedGrid.by_row; slots without a reader hold other tokens' values, and the zero row zeros."""
        readers = self._select(x, self._readers, (self._shape[0], self.chunks, self.chunk_size))
        return F.pad(readers, (0, 0, 0, 0, 1, 0))

    def by_token(self, x: Tensor) -> Tensor:
        """As AlignedGrid.by_token."""
        return self._select(x.flatten(1, 2), self._slot, self._shape)

    @staticmethod
    def _select(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.flatten(0, 1).index_select(0, index).unflatten(0, shape)

    def patterns(self, spec: ModelSpec, like: Tensor) -> tuple[AttentionPattern, AttentionPattern]:
        """As AlignedGrid.patterns, block-diagonal by document."""
        stride = spec.concept.rope_stride
        # A chunk that does not exist sees itself, so that no row of the softmax is empty.
        alone = torch.eye(self.chunks, dtype=torch.bool, device=like.device)
        return (
            _pattern(spec, like, self.positions, self.positions, self.doc_starts),
            _pattern(spec, like, self.chunk_positions, self.chunk_positions * stride, self.chunk_doc, alone),
        )

    def valid_chunks(self, token_valid: Tensor) -> Tensor:
        """As AlignedGrid.valid_chunks."""
        return (
            self._select(token_valid, self._members, (self._shape[0], self.chunks, self.chunk_size)).all(-1)
            & self.exists
        )

    def consecutive(self, chunk_valid: Tensor) -> Tensor:
        """As AlignedGrid.consecutive: both in one document."""
        same = self.chunk_doc[:, :-1] == self.chunk_doc[:, 1:]
        return chunk_valid[:, :-1] & chunk_valid[:, 1:] & same


class TokenGrid:
    """During generation: each token comes with the row it reads, so rows and tokens coincide."""

    def spread(self, rows: Tensor) -> Tensor:
        """[B, n, d] -> [B, n, d]."""
        return rows

    def add_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """As AlignedGrid.add_rows."""
        return x + rows

    def by_row(self, x: Tensor) -> Tensor:
        """[B, n, m] -> [B, n, 1, m]."""
        return x.unsqueeze(2)

    def by_token(self, x: Tensor) -> Tensor:
        """[B, n, 1, m] -> [B, n, m]."""
        return x.squeeze(2)


class ChunkGather:
    """During generation: chunks whose tokens lie at `members` int64 [B, M * k] of a buffer of states."""

    def __init__(self, members: Tensor, chunk_size: int) -> None:
        self.members, self.chunk_size = members, chunk_size

    def pool(self, x: Tensor) -> Tensor:
        """As AlignedGrid.pool, for x [B, buffer, d]."""
        return _mean(take(x, self.members).unflatten(1, (-1, self.chunk_size)))


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, i]]: x [B, m, ..], index int64 [B, n] -> [B, n, ..]."""
    return x[torch.arange(x.shape[0], device=x.device).unsqueeze(1), index]


ChunkGrid = AlignedGrid | DocumentGrid


def make_grid(length: int, chunk_size: int, doc_starts: Tensor | None) -> ChunkGrid:
    """The grid of a sequence of `length` tokens, per document if `doc_starts` is given."""
    return AlignedGrid(length, chunk_size) if doc_starts is None else DocumentGrid(doc_starts, chunk_size)


def window_size(spec: ModelSpec) -> int:
    """How many keys a local layer sees, the token itself included."""
    return spec.window if spec.window_includes_self else spec.window + 1


def _mean(x: Tensor) -> Tensor:
    return x.mean(2, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)


def _pattern(
    spec: ModelSpec,
    like: Tensor,
    positions: Tensor,
    rotary: Tensor,
    documents: Tensor | None = None,
    always: Tensor | None = None,
) -> AttentionPattern:
    cos, sin = rotary_angles(rotary, spec.head_dim, spec.rope_theta)
    window = window_size(spec)
    if documents is None:
        local = None
        if window < positions.shape[-1]:
            local = additive_mask(visibility(positions, positions, window), like)
        return AttentionPattern(cos=cos, sin=sin, local_mask=local, full_mask=None)
    same = (documents.unsqueeze(-1) == documents.unsqueeze(-2)) & (documents.unsqueeze(-1) >= 0)
    seen = [same & visibility(positions, positions, reach) for reach in (window, None)]
    if always is not None:
        seen = [mask | always for mask in seen]
    local, full = (additive_mask(mask.unsqueeze(1), like) for mask in seen)
    return AttentionPattern(cos=cos, sin=sin, local_mask=local, full_mask=full)
