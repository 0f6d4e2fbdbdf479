"""Scaling laws: how loss falls with compute, and how much compute one architecture saves another.

The method (docs/model.md 13): for each compute budget C several shapes are trained, with D = C / FLOPs per token tokens; the
best held-out loss of each budget is the frontier; log L = a - b log C is fitted to each family's frontier; the
efficiency of a candidate is C_base(L) / C at equal loss, as the geometric mean over the budgets and at the largest.
From the two public optima (2.759 at 1e19, 2.449 at 1e20) b = 0.052, and 1.74 times means about 0.07 nats at 1e20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curriculum.errors import InputError
from jobs.evaluation.student_t import t_quantile

Array = NDArray[np.float64]


EXPONENTS = (1e-3, 2.0)
"""Where exponents are looked for. A ladder of few shapes leaves one undetermined, and the search must end all the same."""


MOVES = 50
"""Moves of one length; along a flat valley there would be no end of them."""


class ScalingError(InputError):
    """Points that no law can be fitted to; says what is missing."""


@dataclass(frozen=True, kw_only=True)
class LadderPoint:
    """One trained model of a ladder."""

    budget: float
    """FLOPs: FLOPs per token times tokens."""
    parameters: float
    tokens: float
    loss: float
    """Held-out, nats per token."""
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """log L = a - b log C."""

    a: float
    b: float
    residual: float
    """Root mean square of log L about the line."""

    def loss(self, compute: float) -> float:
        return math.exp(self.a - self.b * math.log(compute))

    def compute(self, loss: float) -> float:
        """FLOPs at which the law reaches `loss`."""
        return math.exp((self.a - math.log(loss)) / self.b)


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How much more compute the baseline needs for the candidate's loss."""

    ratio: float
    """Geometric mean over the budgets."""
    ratio_interval: tuple[float, float] | None
    """95 %, by Fieller's theorem; None without a residual to spare, or where the baseline's slope is not sure."""
    at_largest: float
    baseline: PowerLaw
    candidate: PowerLaw


@dataclass(frozen=True, kw_only=True)
class Chinchilla:
    """L(N, D) = E + A / N^alpha + B / D^beta."""

    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float
    residual: float
    """Root mean square relative error."""

    def loss(self, parameters: float, tokens: float) -> float:
        return self.irreducible + self.a * parameters**-self.alpha + self.b * tokens**-self.beta


def frontier(points: Sequence[LadderPoint]) -> list[LadderPoint]:
    """The best point of each budget, by budget. Budgets within 1 % of each other are one (steps are whole)."""
    best: list[LadderPoint] = []
    for point in sorted(points, key=lambda point: point.budget):
        if best and abs(point.budget / best[-1].budget - 1) < 0.01:
            best[-1] = min(best[-1], point, key=lambda point: point.loss)
        else:
            best.append(point)
    return best


def fit_power_law(points: Sequence[LadderPoint]) -> PowerLaw:
    """Least squares of log loss on log budget. Raises ScalingError for fewer than two budgets."""
    for point in points:
        for name in ("budget", "loss"):
            value = getattr(point, name)
            if not (math.isfinite(value) and value > 0):
                raise ScalingError(
                    f"scaling: {point.label or f'the rung of {point.budget:.3g} FLOPs'} has {name} {value}; a law needs "
                    "positive numbers: train that rung anew, or leave it out"
                )
    compute, loss = np.log([point.budget for point in points]), np.log([point.loss for point in points])
    if len(set(compute.tolist())) < 2:
        raise ScalingError(
            f"scaling: a law needs two budgets, got {len(points)} point(s) of one; extend the ladder"
        )
    return _line(compute, loss)


def efficiency(baseline: Sequence[LadderPoint], candidate: Sequence[LadderPoint]) -> Efficiency:
    """Compute efficiency of the candidate's frontier against the baseline's, over the candidate's budgets.

    Raises ScalingError for a loss or budget that is no positive number, and for a law that does not fall with compute.
    """
    fronts = frontier(baseline), frontier(candidate)
    laws = fit_power_law(fronts[0]), fit_power_law(fronts[1])
    for name, law in zip(("baseline", "candidate"), laws, strict=True):
        if law.b <= 1e-9:
            raise ScalingError(
                f"scaling: the {name}'s loss does not fall with compute (log L = a - b log C with b = {law.b:.3g}), so no "
                "compute reaches the other's loss; train longer or over a wider range of budgets"
            )
    budgets = np.log([point.budget for point in fronts[1]])
    ratios = _log_ratio(*laws, budgets)
    return Efficiency(
        ratio=math.exp(float(ratios.mean())),
        ratio_interval=_fieller(fronts[0], laws[0], fronts[1], laws[1]),
        at_largest=math.exp(float(ratios[-1])),
        baseline=laws[0],
        candidate=laws[1],
    )


def _fieller(
    baseline: Sequence[LadderPoint], law: PowerLaw, candidate: Sequence[LadderPoint], other: PowerLaw
) -> tuple[float, float] | None:
    """95 % interval of the mean ratio: the budgets at which the baseline's line may have the candidate's mean log loss.

    One residual variance for both families, with n + m - 4 degrees of freedom (Student's t).
    """
    freedom = len(baseline) + len(candidate) - 4
    if freedom < 1:
        return None
    squares = len(baseline) * law.residual**2 + len(candidate) * other.residual**2
    noise = t_quantile(freedom) ** 2 * squares / freedom
    compute, loss = (np.log([getattr(point, name) for point in baseline]) for name in ("budget", "loss"))
    spread = float(np.square(compute - compute.mean()).sum())
    drop = float(loss.mean()) - float(np.log([point.loss for point in candidate]).mean())
    of_slope, of_means = noise / spread, noise * (1 / len(baseline) + 1 / len(candidate))
    square = law.b**2 - of_slope
    if square <= 0:
        return None
    root = law.b**2 * of_means + of_slope * (drop**2 - of_means)
    shift = float(compute.mean()) - float(np.log([point.budget for point in candidate]).mean())
    low, high = ((law.b * drop + side * math.sqrt(root)) / square + shift for side in (-1, 1))
    return (math.exp(low), math.exp(high)) if high < 700 else None


def fit_chinchilla(points: Sequence[LadderPoint]) -> Chinchilla:
    """Least squares of relative errors. For given exponents the law is linear in E, A and B, so only two are searched.

    A coarse grid over both exponents, then a shrinking pattern search. Raises ScalingError for fewer than five points.
    """
    if len(points) < 5:
        raise ScalingError(
            f"scaling: five parameters need at least five points, got {len(points)}; extend the ladder"
        )
    n, d, loss = (
        np.array([getattr(p, name) for p in points], dtype=float) for name in ("parameters", "tokens", "loss")
    )
    scale_n, scale_d = float(np.exp(np.log(n).mean())), float(np.exp(np.log(d).mean()))

    def solve(alpha: float, beta: float) -> tuple[float, Array]:
        columns = (
            np.stack([np.ones_like(n), (n / scale_n) ** -alpha, (d / scale_d) ** -beta], axis=1)
            / loss[:, None]
        )
        weights = _non_negative_least_squares(columns, np.ones_like(loss))
        return float(np.square(columns @ weights - 1).mean()), weights

    grid = np.linspace(0.05, 1.0, 20)
    alpha, beta = min(((a, b) for a in grid for b in grid), key=lambda pair: solve(*pair)[0])
    step, found = 0.05, solve(alpha, beta)[0]
    while step > 1e-7:
        for _ in range(MOVES):
            moves = [(alpha + i * step, beta + j * step) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            inside = [move for move in moves if EXPONENTS[0] <= min(move) and max(move) <= EXPONENTS[1]]
            best = min(inside, key=lambda pair: solve(*pair)[0])
            error = solve(*best)[0]
            if error >= found:
                break
            (alpha, beta), found = best, error
        step /= 2
    error, (irreducible, a, b) = solve(alpha, beta)
    return Chinchilla(
        irreducible=float(irreducible),
        a=float(a * scale_n**alpha),
        alpha=float(alpha),
        b=float(b * scale_d**beta),
        beta=float(beta),
        residual=math.sqrt(error),
    )


def _line(compute: Array, loss: Array) -> PowerLaw:
    slope, intercept = np.polyfit(compute - compute.mean(), loss, 1)
    residual = loss - (intercept + slope * (compute - compute.mean()))
    return PowerLaw(
        a=float(intercept - slope * compute.mean()),
        b=float(-slope),
        residual=float(np.sqrt(np.square(residual).mean())),
    )


def _log_ratio(baseline: PowerLaw, candidate: PowerLaw, log_budgets: Array) -> Array:
    """log(C_base(L) / C) at the candidate's loss for each budget."""
    log_loss = candidate.a - candidate.b * log_budgets
    return (baseline.a - log_loss) / baseline.b - log_budgets


def _non_negative_least_squares(columns: Array, target: Array) -> Array:
    """Exact for the few columns here: the best of the unconstrained solutions over subsets that come out non-negative."""
    count = columns.shape[1]
    best, best_error = np.zeros(count), math.inf
    for mask in range(1, 1 << count):
        chosen = [column for column in range(count) if mask >> column & 1]
        part, *_ = np.linalg.lstsq(columns[:, chosen], target, rcond=None)
        if (part < 0).any():
            continue
        weights = np.zeros(count)
        weights[chosen] = part
        error = float(np.square(columns @ weights - target).sum())
        if error < best_error:
            best, best_error = weights, error
    return best
