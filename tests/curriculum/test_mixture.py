from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from curriculum.mixture import block_counts

weights_strategy = st.dictionaries(
    st.text("abcdefgh-/", min_size=1, max_size=6),
    st.floats(0.0, 1000.0, allow_nan=False),
    min_size=1,
    max_size=12,
)


@given(weights_strategy, st.integers(1, 100_000))
def test_counts_sum_to_the_block_and_stay_within_one_of_the_exact_share(weights, block):
    assume(sum(Fraction(w) for w in weights.values()) > 0)
    try:
        counts = block_counts(weights, block)
    except ValueError as error:
        assert "raise order_block" in str(error)
        return
    total = sum(Fraction(w) for w in weights.values())
    assert sum(counts.values()) == block
    assert list(counts) == sorted(weights)
    assert all(abs(counts[name] - Fraction(weights[name]) * block / total) < 1 for name in weights)


@given(weights_strategy, st.integers(1, 10_000))
def test_counts_do_not_depend_on_the_order_of_the_mapping(weights, block):
    assume(sum(weights.values()) > 0)
    reordered = dict(reversed(weights.items()))
    try:
        expected = block_counts(weights, block)
    except ValueError:
        with pytest.raises(ValueError):
            block_counts(reordered, block)
        return
    assert block_counts(reordered, block) == expected


def test_equal_remainders_go_to_the_name_that_sorts_first():
    assert block_counts({"b": 1, "c": 1, "a": 1}, 4) == {"a": 2, "b": 1, "c": 1}


def test_weights_need_not_sum_to_one():
    assert block_counts({"code": 30, "prose": 70}, 10) == block_counts({"code": 0.3, "prose": 0.7}, 10)


def test_a_zero_weight_gets_nothing():
    assert block_counts({"a": 1.0, "b": 0.0}, 8) == {"a": 8, "b": 0}


def test_a_source_that_would_vanish_is_an_error_with_the_block_it_needs():
    with pytest.raises(ValueError, match=r"mixture\.rare: .*order_block to at least 1001"):
        block_counts({"common": 1000.0, "rare": 1.0}, 16)
    assert block_counts({"common": 1000.0, "rare": 1.0}, 1001)["rare"] == 1


@pytest.mark.parametrize(
    ("weights", "block", "message"),
    [
        ({}, 8, "no sources"),
        ({"a": -1.0, "b": 2.0}, 8, r"mixture\.a: weight -1\.0"),
        ({"a": float("nan")}, 8, r"mixture\.a: weight nan"),
        ({"a": 0.0, "b": 0.0}, 8, "every weight is 0"),
        ({"a": 1.0}, 0, "order_block: 0"),
    ],
)
def test_a_mixture_that_means_nothing_is_refused_by_name(weights, block, message):
    with pytest.raises(ValueError, match=message):
        block_counts(weights, block)
