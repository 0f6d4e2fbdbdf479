"""Scaling fits recover the laws that made the points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jobs.analysis.scaling import (
    EXPONENTS,
    LadderPoint,
    PowerLaw,
    ScalingError,
    efficiency,
    fit_chinchilla,
    fit_power_law,
    frontier,
)

BUDGETS = (1e19, 3e19, 5e19, 8e19, 1e20)
B = math.log(2.759 / 2.449) / math.log(10)
"""From the two public optima."""


def ladder(advantage: float, *, noise: float = 0.0, seed: int = 0) -> list[LadderPoint]:
    """Five shapes a budget; the best lies on the law, reached with `advantage` times less compute than the baseline."""
    generator = np.random.default_rng(seed)
    law = PowerLaw(a=math.log(2.759) + B * math.log(1e19), b=B, residual=0.0)
    points = []
    for budget in BUDGETS:
        jitter = math.exp(generator.normal(0, noise))
        for excess in (0.0, 0.01, 0.02, 0.05):
            loss = law.loss(budget * advantage / 1.74) * jitter + excess
            points.append(
                LadderPoint(budget=budget * (1 + excess / 10), parameters=1e9, tokens=1e10, loss=loss)
            )
    return points


def test_the_constructed_1_74_is_recovered() -> None:
    found = efficiency(ladder(1.0), ladder(1.74))
    assert found.ratio == pytest.approx(1.74, rel=1e-6)
    assert found.at_largest == pytest.approx(1.74, rel=1e-6)
    assert found.candidate.b == pytest.approx(0.052, abs=0.001)
    # "1.74 times corresponds to about 0.07 nats at 1e20"
    assert found.baseline.loss(1e20) - found.candidate.loss(1e20) == pytest.approx(0.07, abs=0.005)


def test_the_interval_holds_the_truth_and_widens_with_noise() -> None:
    widths = []
    for noise in (0.001, 0.004):
        found = efficiency(ladder(1.0, noise=noise, seed=1), ladder(1.74, noise=noise, seed=2))
        assert found.ratio_interval is not None
        low, high = found.ratio_interval
        assert low < found.ratio < high and low < 1.74 < high
        widths.append(high - low)
    assert widths[0] < widths[1]


def test_the_frontier_is_the_best_of_each_budget() -> None:
    best = frontier(ladder(1.0))
    assert len(best) == len(BUDGETS)
    assert [point.loss for point in best] == sorted((point.loss for point in best), reverse=True)


def test_a_law_inverts_itself() -> None:
    law = fit_power_law(frontier(ladder(1.0)))
    assert law.compute(law.loss(4e19)) == pytest.approx(4e19, rel=1e-9)
    assert law.residual < 1e-9


def test_the_chinchilla_form_is_recovered() -> None:
    points = [
        LadderPoint(budget=6 * n * d, parameters=n, tokens=d, loss=1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28)
        for n in np.geomspace(1e8, 1e10, 5)
        for d in np.geomspace(1e9, 1e12, 5)
    ]
    law = fit_chinchilla(points)
    assert law.irreducible == pytest.approx(1.69, abs=0.005)
    assert (law.alpha, law.beta) == (pytest.approx(0.34, abs=0.003), pytest.approx(0.28, abs=0.003))
    assert law.loss(3e9, 5e10) == pytest.approx(1.69 + 406.4 * 3e9**-0.34 + 410.7 * 5e10**-0.28, rel=1e-4)


def test_the_irreducible_loss_is_never_negative() -> None:
    points = [
        LadderPoint(budget=n * d, parameters=n, tokens=d, loss=50 * n**-0.1)
        for n in (1e7, 1e8, 1e9)
        for d in (1e9, 1e10)
    ]
    law = fit_chinchilla(points)
    assert min(law.irreducible, law.a, law.b) >= 0 and law.residual < 1e-3


def test_too_few_points_are_an_error_that_says_so() -> None:
    with pytest.raises(ScalingError, match="two budgets"):
        fit_power_law(ladder(1.0)[:1])
    with pytest.raises(ScalingError, match="five points"):
        fit_chinchilla(ladder(1.0)[:4])


def test_a_ladder_that_leaves_an_exponent_undetermined_ends_within_bounds() -> None:
    """Two shapes: any large alpha does as well, and the search once walked along that valley for ever."""
    points = [
        LadderPoint(
            budget=compute,
            parameters=parameters,
            tokens=compute / (6 * parameters),
            loss=5 * (compute / 1e10) ** -0.052 * (1.02 if parameters > 2e5 else 1.0),
        )
        for compute in (3e10, 6e10, 1.2e11)
        for parameters in (121466.0, 245146.0)
    ]
    law = fit_chinchilla(points)
    assert EXPONENTS[0] <= min(law.alpha, law.beta) and max(law.alpha, law.beta) <= EXPONENTS[1]
    assert law.residual < 1e-3


def test_a_baseline_that_does_not_fall_is_refused_by_name() -> None:
    for slope in (0.0, 0.05):
        rising = [
            LadderPoint(budget=budget, parameters=1e9, tokens=1e9, loss=math.exp(slope * index))
            for index, budget in enumerate(BUDGETS)
        ]
        with pytest.raises(ScalingError, match="the baseline's loss does not fall with compute"):
            efficiency(rising, ladder(1.0))


@pytest.mark.parametrize("loss", [math.nan, math.inf, 0.0, -1.0])
def test_a_rung_without_a_usable_loss_is_refused_by_name(loss: float) -> None:
    rung = LadderPoint(budget=1e18, parameters=1e9, tokens=1e9, loss=loss, label="rung 3")
    with pytest.raises(ScalingError, match="rung 3 has loss"):
        efficiency([rung, *ladder(1.0)], ladder(1.0))
