from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.data.packing import document_grid

EOS = 0
windows = st.sampled_from([1, 2, 4]).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.tuples(st.integers(1, 3), st.integers(1, 12)).flatmap(
            lambda shape: arrays(
                np.int64, (shape[0], shape[1] * k), elements=st.sampled_from([EOS, 1, 2, 3, 4])
            )
        ),
    )
)


def documents(row):
    """(start, end) of each document of one window."""
    ends = [i + 1 for i, token in enumerate(row) if token == EOS]
    if not ends or ends[-1] != len(row):
        ends.append(len(row))
    return list(zip([0, *ends[:-1]], ends, strict=True))


@given(windows)
def test_the_grid_is_the_definition_document_by_document(case):
    k, input_ids = case
    grid = document_grid(input_ids, EOS, k)
    for b, row in enumerate(input_ids):
        c = 0
        for d, (start, end) in enumerate(documents(row)):
            first = c
            for j in range((end - start) // k):
                assert (
                    grid.chunk_valid[b, c]
                    and grid.chunk_document[b, c] == d
                    and grid.chunk_position[b, c] == j
                )
                assert grid.chunk_tokens[b, c].tolist() == list(range(start + j * k, start + (j + 1) * k))
                assert grid.pair_valid[b, c] == (j + 1 < (end - start) // k)
                c += 1
            for p in range(end - start):
                t = start + p
                assert grid.document[b, t] == d and grid.position[b, t] == p
                shifted = (p + 1) // k - 1
                assert grid.concept_of_token[b, t] == (first + shifted if p >= k - 1 else -1)
        assert not grid.chunk_valid[b, c:].any() and not grid.pair_valid[b, max(c - 1, 0) :].any()
        assert (grid.chunk_document[b, c:] == -1).all() and (grid.chunk_tokens[b, c:] == 0).all()


@given(windows)
def test_no_token_sees_a_concept_of_its_future_or_of_another_document(case):
    k, input_ids = case
    grid = document_grid(input_ids, EOS, k)
    for b, t in np.ndindex(*input_ids.shape):
        chunk = grid.concept_of_token[b, t]
        if chunk >= 0:
            assert grid.chunk_valid[b, chunk] and grid.chunk_document[b, chunk] == grid.document[b, t]
            assert grid.chunk_tokens[b, chunk].max() <= t


@given(windows)
def test_one_document_in_a_window_is_the_stream_grid(case):
    k, input_ids = case
    grid = document_grid(np.where(input_ids == EOS, 1, input_ids), EOS, k)
    length = input_ids.shape[1]
    assert (
        grid.chunk_valid.all() and (grid.chunk_tokens.reshape(len(input_ids), -1) == np.arange(length)).all()
    )


def test_shapes_do_not_depend_on_the_documents():
    shapes = set()
    for input_ids in (np.ones((2, 16), dtype=int), np.zeros((2, 16), dtype=int)):
        grid = document_grid(input_ids, EOS, 4)
        shapes.add(tuple(getattr(grid, name).shape for name in grid.__dataclass_fields__))
    assert len(shapes) == 1


def test_a_chunk_size_that_does_not_divide_the_window_is_refused():
    with pytest.raises(ValueError, match="chunk_size: 4 does not divide the sequence length 10"):
        document_grid(np.ones((1, 10), dtype=int), EOS, 4)
