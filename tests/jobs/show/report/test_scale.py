from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.show.report.scale import linear_ticks, log_ticks, si_ticks, smooth, thin


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-6, 1e9), count=st.integers(2, 12))
def test_ticks_are_inside_evenly_spaced_and_about_as_many_as_asked_for(
    low: float, span: float, count: int
) -> None:
    high = low + span
    ticks = linear_ticks(low, high, count)
    if not ticks:
        return
    slack = 1e-6 * span
    assert low - slack <= ticks[0] and ticks[-1] <= high + slack
    assert len(ticks) <= count + 1
    steps = np.diff(ticks)
    assert len(steps) == 0 or np.allclose(steps, steps[0], rtol=1e-3, atol=1e-9 * max(abs(low), abs(high)))


def test_ticks_of_nothing_and_of_decades() -> None:
    assert linear_ticks(3.0, 3.0, 5) == [3.0]
    assert log_ticks(0.5, 2000.0) == [1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(1.5, 60.0) == [2.0, 5.0, 10.0, 20.0, 50.0]


def test_tick_labels_tell_neighbours_apart() -> None:
    assert si_ticks([1_000_000, 1_050_000, 1_100_000]) == ["1M", "1.05M", "1.1M"]


@given(
    y=st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=400),
    buckets=st.integers(1, 40),
)
def test_thinning_is_bounded_ordered_and_loses_no_extreme(y: list[float], buckets: int) -> None:
    values = np.array(y)
    x = np.arange(len(values), dtype=float)
    kept_x, kept_y = thin(x, values, buckets)
    assert len(kept_x) <= max(4 * buckets, 1)
    assert (np.diff(kept_x) > 0).all()
    finite = values[np.isfinite(values)]
    if len(finite):
        assert np.nanmin(kept_y) == finite.min() and np.nanmax(kept_y) == finite.max()
    np.testing.assert_array_equal(kept_y, values[kept_x.astype(int)])


@given(y=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=80), window=st.integers(1, 30))
def test_the_moving_mean_is_centred_and_keeps_the_ends(y: list[float], window: int) -> None:
    values = np.array(y)
    means = smooth(values, window)
    for index in range(len(values)):
        half = min(window // 2, index, len(values) - 1 - index)
        assert means[index] == pytest.approx(values[index - half : index + half + 1].mean(), abs=1e-6)


def test_the_moving_mean_passes_over_missing_values() -> None:
    means = smooth(np.array([1.0, math.nan, 3.0, math.nan, math.nan, math.nan, 7.0]), 3)
    assert means[1] == 2.0 and math.isnan(means[4]) and means[0] == 1.0
