"""Comparing two training runs: at equal loss, how many tokens and how much compute one needs of the other's.

Tokens-to-match (NCP spec 13; the public figures are 51.3 %, that is 1.95 times fewer): both runs on the same data in
the same order, both curves smoothed alike; the target is the baseline's smoothed loss where it ends; the answer is
the first token count at which the candidate's smoothed loss is no higher, interpolated between steps. Compute-to-match
is the same with tokens weighed by each model's FLOPs per token.

Smoothing is a local straight line: at every point the least-squares line through the points within a window centred on
it, taken at that point. Unlike a moving mean it has no lag at the ends, where the target is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curriculum.errors import InputError

Array = NDArray[np.float64]

WINDOW = 0.02
"""Width of the smoothing window, as a share of the baseline's tokens."""


class ComparisonError(InputError):
    """Two runs that cannot be compared; names them, the reason and the fix."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """One run's training loss."""

    run: str
    tokens: Array
    """Cumulative, ascending."""
    loss: Array
    order: str
    """Identity of the data order: only runs that saw the same tokens in the same order compare step by step."""
    flops_per_token: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Match:
    """How soon the candidate reaches the baseline's final loss."""

    target_loss: float
    tokens: float | None
    """Where the candidate reaches it; None if it never does."""
    token_ratio: float | None
    """Of the baseline's tokens; 0.513 is the seed's 51.3 %."""
    compute_ratio: float | None
    final_gap: float
    """Baseline's smoothed loss minus the candidate's, at equal tokens where the shorter ends. Positive: candidate ahead."""
    compute_gap: float
    """The same at equal compute."""

    @property
    def token_speedup(self) -> float | None:
        return None if self.token_ratio is None else 1 / self.token_ratio

    @property
    def compute_speedup(self) -> float | None:
        return None if self.compute_ratio is None else 1 / self.compute_ratio


@dataclass(frozen=True, kw_only=True)
class MatchSummary:
    """Matches over seeds: means of the ratios and 95 % intervals (Student's t over seeds; None for one seed)."""

    matches: tuple[Match, ...]
    token_ratio: float | None
    token_ratio_interval: tuple[float, float] | None
    compute_ratio: float | None
    compute_ratio_interval: tuple[float, float] | None
    unmatched: int
    """Seeds in which the candidate never reached the target; the means are over the others."""


def compare(
    baselines: Sequence[LossCurve],
    candidates: Sequence[LossCurve],
    *,
    window: float = WINDOW,
    force: bool = False,
) -> MatchSummary:
    """Match every candidate with the baseline of its seed (`pair_by_seed`). Raises ComparisonError.

    Curves of different data orders are refused unless `force`: then what is compared is no longer only the model.
    """
    pairs = pair_by_seed(baselines, candidates)
    for baseline, candidate in pairs:
        if baseline.order != candidate.order and not force:
            raise ComparisonError(
                f"compare: {baseline.run} and {candidate.run} read different data orders ({baseline.order[:12]} and "
                f"{candidate.order[:12]}); train both on the same order, or pass --force and say so"
            )
    matches = tuple(match(baseline, candidate, window=window) for baseline, candidate in pairs)
    tokens = [m.token_ratio for m in matches if m.token_ratio is not None]
    compute = [m.compute_ratio for m in matches if m.compute_ratio is not None]
    return MatchSummary(
        matches=matches,
        token_ratio=float(np.mean(tokens)) if tokens else None,
        token_ratio_interval=mean_interval(tokens),
        compute_ratio=float(np.mean(compute)) if compute else None,
        compute_ratio_interval=mean_interval(compute),
        unmatched=len(matches) - len(tokens),
    )


def pair_by_seed(
    baselines: Sequence[LossCurve], candidates: Sequence[LossCurve]
) -> list[tuple[LossCurve, LossCurve]]:
    """(baseline, candidate) for every candidate: of equal seeds, or the only two there are. Raises ComparisonError."""
    if not baselines or not candidates:
        raise ComparisonError("compare: no pair of runs; give a baseline and a candidate")
    if len(baselines) == len(candidates) == 1:
        return [(baselines[0], candidates[0])]
    for side in (baselines, candidates):
        for seed, count in Counter(curve.seed for curve in side).items():
            if count > 1:
                runs = ", ".join(curve.run for curve in side if curve.seed == seed)
                raise ComparisonError(
                    f"compare: {runs} all have seed {seed}; give one run a seed on each side"
                )
    by_seed = {curve.seed: curve for curve in baselines}
    for candidate in candidates:
        if candidate.seed not in by_seed:
            raise ComparisonError(
                f"compare: {candidate.run} has seed {candidate.seed}, and no baseline does; give one run a seed on each side"
            )
    return [(by_seed[candidate.seed], candidate) for candidate in candidates]


def match(baseline: LossCurve, candidate: LossCurve, *, window: float = WINDOW) -> Match:
    """How soon one candidate matches one baseline."""
    width = window * float(baseline.tokens[-1])
    base, tried = (local_line(curve.tokens, curve.loss, width) for curve in (baseline, candidate))
    total = float(baseline.tokens[-1])
    target = float(base[-1])
    reached = first_crossing(candidate.tokens, tried, target)
    relative_cost = candidate.flops_per_token / baseline.flops_per_token

    def gap(cost: float) -> float:
        """At equal x, a token of the candidate counting as `cost` of the baseline's."""
        end = min(total, float(candidate.tokens[-1]) * cost)
        return float(np.interp(end, baseline.tokens, base) - np.interp(end, candidate.tokens * cost, tried))

    ratio = None if reached is None else reached / total
    return Match(
        target_loss=target,
        tokens=reached,
        token_ratio=ratio,
        compute_ratio=None if ratio is None else ratio * relative_cost,
        final_gap=gap(1.0),
        compute_gap=gap(relative_cost),
    )


def local_line(x: Array, y: Array, width: float) -> Array:
    """Smoothed y: the least-squares line through the points within width / 2 of each x, at that x.

    Points that are not finite are left out of every line. Where one point is in reach it is itself; where none, NaN.
    O(n) by running sums.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    scale = max(float(x[-1] - x[0]), 1e-300)
    u = (x - x[0]) / scale
    finite = np.isfinite(y)
    terms = [np.ones_like(u), u, np.where(finite, y, 0.0), u * u, u * np.where(finite, y, 0.0)]
    sums = [np.concatenate(([0.0], np.cumsum(term * finite))) for term in terms]
    half = width / 2 / scale * (1 + 1e-12)
    low, high = np.searchsorted(u, u - half, side="left"), np.searchsorted(u, u + half, side="right")
    n, su, sy, suu, suy = (total[high] - total[low] for total in sums)
    count = np.maximum(n, 1.0)
    mean_u, mean_y = su / count, sy / count
    variance, covariance = suu / count - mean_u**2, suy / count - mean_u * mean_y
    slope = np.where((n >= 2) & (variance > 1e-18), covariance / np.maximum(variance, 1e-18), 0.0)
    return np.where(n > 0, mean_y + slope * (u - mean_u), np.nan)


def first_crossing(x: Array, y: Array, target: float) -> float | None:
    """First x at which y <= target, linear between points; None if it never is."""
    below = np.flatnonzero(y <= target)
    if len(below) == 0:
        return None
    index = int(below[0])
    if index == 0:
        return float(x[0])
    drop = float(y[index - 1] - y[index])
    share = (float(y[index - 1]) - target) / drop if drop > 0 and math.isfinite(drop) else 1.0
    return float(x[index - 1] + share * (x[index] - x[index - 1]))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None for fewer than two values.

    Seeds are few: a bootstrap over three of them covers the truth only three times in four.
    """
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = _t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return mean - half, mean + half


_T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t at 97.5 %, for 1 to 20 degrees of freedom."""


def _t_quantile(freedom: int) -> float:
    """Beyond the table by the first terms of its expansion about the normal quantile: within 0.001."""
    if freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom)
