"""Tokens-to-match and compute-to-match on curves whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.analysis.comparison import (
    ComparisonError,
    LossCurve,
    compare,
    holding_crossing,
    local_line,
    match,
    mean_interval,
    savings,
)

TOTAL = 1e9


def curve(
    run: str, speed: float, *, noise: float = 0.0, seed: int = 0, order: str = "same", flops: float = 1.0
) -> LossCurve:
    """A power law in tokens; `speed` 2 reaches every loss in half the tokens."""
    tokens = np.linspace(TOTAL / 4000, TOTAL, 4000)
    loss = 1.7 + 12 * (speed * tokens) ** -0.12
    loss = loss + np.random.default_rng(seed + len(run)).normal(0, noise, len(loss)) if noise else loss
    return LossCurve(run=run, tokens=tokens, loss=loss, order=order, flops_per_token=flops, seed=seed)


@pytest.mark.parametrize("speed", [1 / 0.513, 1 / 0.662, 1.1])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_known_speed_up_is_found(speed: float, noise: float) -> None:
    found = match(curve("base", 1.0, noise=noise), curve("ncp", speed, noise=noise))
    assert found.token_speedup == pytest.approx(speed, rel=0.002 if noise == 0 else 0.06)
    assert found.final_gap > 0


def test_the_seeds_figures_are_one_another_reciprocals() -> None:
    found = match(curve("base", 1.0), curve("ncp", 1.949))
    assert found.token_ratio == pytest.approx(0.513, abs=0.001)


def test_compute_to_match_weighs_tokens_by_their_cost() -> None:
    found = match(curve("base", 1.0, flops=4.0), curve("ncp", 2.0, flops=5.0))
    assert found.token_ratio is not None and found.compute_ratio == pytest.approx(found.token_ratio * 1.25)
    assert found.compute_speedup == pytest.approx(1.6, rel=0.01)


def test_a_candidate_that_never_gets_there_has_no_ratio() -> None:
    found = match(curve("base", 1.0), curve("worse", 0.5))
    assert found.tokens is found.token_ratio is found.token_speedup is None
    assert found.final_gap < 0


def test_different_data_orders_are_refused_unless_forced() -> None:
    base, other = curve("base", 1.0), curve("ncp", 2.0, order="another")
    with pytest.raises(ComparisonError, match=r"base and ncp read different data orders.*--force"):
        compare([base], [other])
    assert compare([base], [other], force=True).token_ratio is not None


def test_seeds_are_paired_and_give_an_interval_that_holds_the_truth() -> None:
    bases = [curve("base", 1.0, noise=0.02, seed=seed) for seed in range(6)]
    tries = [curve("ncp", 2.0, noise=0.02, seed=seed) for seed in range(6)]
    summary = compare(bases, tries)
    assert summary.token_ratio_interval is not None and summary.unmatched == 0
    low, high = summary.token_ratio_interval
    assert high is not None
    assert low - 0.01 < 0.5 < high + 0.01 and high - low < 0.08
    with pytest.raises(ComparisonError, match="seed 9"):
        compare(bases, [curve("ncp", 2.0, seed=9)])
    assert compare(bases[:1], tries[:1]).interval_over == "steps"


def test_a_seed_given_twice_is_refused() -> None:
    with pytest.raises(ComparisonError, match="ncp, ncp2 all have seed 0"):
        compare([curve("base", 1.0)], [curve("ncp", 2.0), curve("ncp2", 2.0)])


def test_the_gap_is_taken_at_equal_tokens_or_at_equal_compute() -> None:
    """A candidate twice as fast that costs twice as much: ahead in tokens, level in compute."""
    found = match(curve("base", 1.0, flops=1.0), curve("ncp", 2.0, flops=2.0))
    assert found.final_gap > 0.05 and found.compute_gap == pytest.approx(0, abs=2e-3)
    assert found.compute_ratio == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("seeds", [2, 3, 5, 40])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(seeds: int) -> None:
    draws = np.random.default_rng(seeds).normal(0.5, 0.1, (4000, seeds))
    held = [low < 0.5 < high for low, high in filter(None, map(mean_interval, draws.tolist()))]
    assert len(held) == 4000 and np.mean(held) == pytest.approx(0.95, abs=0.012)
    assert mean_interval([0.5]) is None


@given(slope=st.floats(-5, 5), offset=st.floats(-5, 5), width=st.floats(0.001, 1.0), count=st.integers(1, 60))
def test_smoothing_leaves_a_straight_line_alone_up_to_its_ends(
    slope: float, offset: float, width: float, count: int
) -> None:
    x = np.linspace(0, 1, count)
    np.testing.assert_allclose(local_line(x, offset + slope * x, width), offset + slope * x, atol=1e-6)


def test_smoothing_skips_missing_values() -> None:
    x = np.arange(10.0)
    y = 2 * x
    y[[0, 4, 9]] = np.nan
    np.testing.assert_allclose(local_line(x, y, 6.0), 2 * x, atol=1e-9)


def test_crossings_are_interpolated() -> None:
    x, y = np.array([0.0, 10.0, 20.0]), np.array([4.0, 2.0, 1.0])
    assert holding_crossing(x, y, 3.0) == 5.0
    assert holding_crossing(x, y, 5.0) == 0.0
    assert holding_crossing(x, y, 0.5) is None


def test_a_dip_that_comes_back_is_no_crossing_and_a_run_that_ends_behind_saves_nothing() -> None:
    x = np.arange(1.0, 11.0)
    y = np.array([5, 1, 5, 5, 5, 2, 2, 2, 2, 2.0])
    assert holding_crossing(x, y, 3.0) == pytest.approx(5 + 2 / 3)
    base, worse = curve("base", 1.0), curve("worse", 1.0)
    dipped = worse.loss + 0.05
    dipped[100:300] = 0.5
    found = match(base, replace(worse, loss=dipped))
    assert found.final_gap < 0 and found.token_ratio is None


@pytest.mark.parametrize("steps", [200, 1000])
def test_noise_moves_the_answer_to_neither_side(steps: int) -> None:
    tokens = np.linspace(TOTAL / steps, TOTAL, steps)
    found = []
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(0, 0.03, (2, steps))
        sides = [
            LossCurve(
                run=str(speed), tokens=tokens, loss=1.7 + 12 * (speed * tokens) ** -0.12 + own, order="o"
            )
            for speed, own in zip((1.0, 1 / 0.513), noise, strict=True)
        ]
        found.append(match(*sides).token_ratio or 1.0)
    assert np.mean(found) == pytest.approx(0.513, abs=0.015)


def test_one_pair_has_an_interval_and_a_noise_floor() -> None:
    found = match(curve("base", 1.0, noise=0.03), curve("ncp", 2.0, noise=0.03))
    assert found.token_ratio_interval is not None and found.noise_floor is not None
    low, high = found.token_ratio_interval
    assert high is not None and low < 0.5 < high and 0 < found.noise_floor < 0.5


def test_a_run_that_needs_more_says_more() -> None:
    assert savings(0.5) == "2.00x less" and savings(1.25) == "1.25x more"


def test_losses_that_are_missing_at_the_end_are_left_out() -> None:
    base = curve("base", 1.0)
    loss = base.loss.copy()
    loss[-5:] = np.nan
    found = match(replace(base, loss=loss), curve("ncp", 2.0))
    assert found.token_ratio == pytest.approx(0.5, abs=0.01)
