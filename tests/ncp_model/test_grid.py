"""Chunk grids: pooling, the causal shift, packed documents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ncp_model import ModelSpec
from ncp_model.grid import AlignedGrid, DocumentGrid


def reads(length: int, k: int) -> list[int]:
    """Which row each token reads: j(t) + 1 = floor((t + 1) / k)."""
    return [(t + 1) // k for t in range(length)]


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 30), k=st.integers(1, 7))
def test_an_aligned_grid_is_the_definition(length: int, k: int) -> None:
    grid = AlignedGrid(length, k)
    generator = torch.Generator().manual_seed(length * 10 + k)
    x = torch.randn(2, length, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(2, length // k + 1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = rows[:, reads(length, k)]
    torch.testing.assert_close(grid.spread(rows), expected)
    torch.testing.assert_close(grid.by_token(grid.by_row(x)), x)
    for j in range(length // k):
        torch.testing.assert_close(grid.pool(x)[:, j], x[:, j * k : (j + 1) * k].mean(1))
    added = grid.add_rows(x, rows)
    torch.testing.assert_close(added, x + expected)
    actual = torch.autograd.grad(added.sin().sum(), (x, rows))
    torch.testing.assert_close(actual, torch.autograd.grad((x + expected).sin().sum(), (x, rows)))


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), k=st.integers(1, 5))
def test_a_document_grid_is_an_aligned_grid_for_each_document(lengths: list[int], k: int) -> None:
    total = sum(lengths)
    starts = torch.cat([torch.full((n,), sum(lengths[:i])) for i, n in enumerate(lengths)]).unsqueeze(0)
    grid = DocumentGrid(starts, k)
    x = torch.randn(1, total, 3, generator=torch.Generator().manual_seed(total), dtype=torch.float64)
    parts = x.split(lengths, dim=1)
    pooled = torch.cat([AlignedGrid(part.shape[1], k).pool(part) for part in parts], dim=1)
    count = pooled.shape[1]
    assert grid.exists[0].tolist() == [n < count for n in range(total // k)]
    if total < k:
        return
    torch.testing.assert_close(grid.pool(x)[:, :count], pooled)
    positions = [j for n in lengths for j in range(n // k)]
    assert grid.chunk_positions[0, :count].tolist() == positions

    rows = torch.arange(total // k + 1.0).view(1, -1, 1)
    before, expected = 0, []
    for n in lengths:
        expected += [row + before if row else 0 for row in reads(n, k)]
        before += n // k
    assert grid.spread(rows)[0, :, 0].tolist() == expected
    assert_contraction(grid, x, expected)


def assert_contraction(grid: DocumentGrid, x: Tensor, read: list[int]) -> None:
    """Contracting route weights at chunk resolution is contracting them per token, except for the zero row."""
    rows = torch.randn(
        1, grid.chunks + 1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    rows[:, 0] = 0
    weights = x[..., :2]
    actual = grid.by_token(torch.matmul(grid.by_row(weights), rows))
    per_token = torch.einsum("btn,btnd->btd", weights, rows[:, read])
    torch.testing.assert_close(actual, per_token)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_sequence_shorter_than_a_chunk_has_none(length: int) -> None:
    assert AlignedGrid(length, 4).chunks == 0
    assert DocumentGrid(torch.zeros(1, length, dtype=torch.long), 4).chunks == 0


def test_masks_of_unused_chunks_hold_no_empty_row() -> None:
    starts = torch.tensor([[0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9]])
    _, pattern = DocumentGrid(starts, 4).patterns(ModelSpec.preset("tiny"), torch.zeros(1))
    assert pattern.full_mask is not None
    assert torch.isfinite(pattern.full_mask).any(-1).all()
