"""Comparing two training runs: at equal loss, how many tokens and how much compute one needs of the other's.

Tokens-to-match (docs/model.md 13; the public figures are 51.3 %, that is 1.95 times fewer): both runs on the same data in
the same order, both curves smoothed alike; the target is the baseline's smoothed loss where it ends; the answer is
where the candidate's smoothed loss passes it for good, interpolated between steps. Compute-to-match is the same with
tokens weighed by each model's FLOPs per token.

Smoothing is a local straight line: at every point the least-squares line through the points within a window centred on
it, taken at that point. Unlike a moving mean it has no lag at the ends, where the target is read. The window holds at
least MIN_WINDOW_STEPS steps: of fewer, the *first* crossing is noise, and early.

The interval of one pair of runs inverts the test "the candidate's loss here is the target": it holds every place at
which the two smoothed losses differ by less than 1.96 of their standard errors, which come from the residuals' long-run
variance, since losses of neighbouring steps are not independent (tests/benchmarks/bench_coverage.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curriculum.errors import InputError
from jobs.evaluation.student_t import Z_95, t_quantile

Array = NDArray[np.float64]

WINDOW = 0.02
"""Width of the smoothing window, as a share of the baseline's tokens."""

MIN_WINDOW_STEPS = 32
"""Logged steps that a window holds at least."""

Interval = tuple[float, float | None]
"""95 %; an open upper end means that never reaching it cannot be ruled out."""


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
    """Where the candidate reaches it for good; None if it does not, or ends above it."""
    token_ratio: float | None
    """Of the baseline's tokens; 0.513 is the seed's 51.3 %."""
    token_ratio_interval: Interval | None
    """From the noise of the steps; None for curves of too few steps."""
    noise_floor: float | None
    """Share of its tokens by which the baseline, trained once more, could come out ahead of itself. 1: anything could."""
    compute_ratio: float | None
    compute_ratio_interval: Interval | None
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
    """Matches over seeds: means of the ratios and 95 % intervals."""

    matches: tuple[Match, ...]
    token_ratio: float | None
    token_ratio_interval: Interval | None
    compute_ratio: float | None
    compute_ratio_interval: Interval | None
    interval_over: str
    """`seeds` (Student's t) or, of one pair of runs, `steps`. No interval over seeds where some never reached the target."""
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
    unmatched = len(matches) - len(tokens)
    alone = matches[0] if len(matches) == 1 else None
    return MatchSummary(
        matches=matches,
        token_ratio=float(np.mean(tokens)) if tokens else None,
        token_ratio_interval=_over_seeds(tokens, unmatched) if alone is None else alone.token_ratio_interval,
        compute_ratio=float(np.mean(compute)) if compute else None,
        compute_ratio_interval=_over_seeds(compute, unmatched)
        if alone is None
        else alone.compute_ratio_interval,
        interval_over="seeds" if alone is None else "steps",
        unmatched=unmatched,
    )


def _over_seeds(ratios: Sequence[float], unmatched: int) -> tuple[float, float] | None:
    return None if unmatched else mean_interval(ratios)


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
    """How soon one candidate matches one baseline. Steps without a finite loss are left out of both.

    Raises ComparisonError for a curve that has no finite loss.
    """
    (base_tokens, base_loss), (tokens, loss) = _finite(baseline), _finite(candidate)
    total = float(base_tokens[-1])
    width = smoothing_width(base_tokens, tokens, window)
    base, tried = local_line(base_tokens, base_loss, width), local_line(tokens, loss, width)
    target = float(base[-1])
    reached = holding_crossing(tokens, tried, target) if tried[-1] <= target else None
    relative_cost = candidate.flops_per_token / baseline.flops_per_token
    end_error, base_error = (
        standard_error(base_tokens, base_loss, base, width, at_end=at_end) for at_end in (True, False)
    )
    tried_error = standard_error(tokens, loss, tried, width, at_end=False)

    def gap(cost: float) -> float:
        """At equal x, a token of the candidate counting as `cost` of the baseline's."""
        end = min(total, float(tokens[-1]) * cost)
        return float(np.interp(end, base_tokens, base) - np.interp(end, tokens * cost, tried))

    interval, floor = None, None
    if end_error is not None and base_error is not None and tried_error is not None:
        half = Z_95 * math.hypot(end_error, tried_error)
        low, high = (holding_crossing(tokens, tried, target + side * half) for side in (1, -1))
        if low is not None:
            interval = (low / total, None if high is None else high / total)
        again = holding_crossing(base_tokens, base, target + Z_95 * math.hypot(end_error, base_error))
        floor = 1.0 - (again or 0.0) / total
    ratio = None if reached is None else reached / total
    return Match(
        target_loss=target,
        tokens=reached,
        token_ratio=ratio,
        token_ratio_interval=interval,
        noise_floor=floor,
        compute_ratio=None if ratio is None else ratio * relative_cost,
        compute_ratio_interval=None if interval is None else _scaled(interval, relative_cost),
        final_gap=gap(1.0),
        compute_gap=gap(relative_cost),
    )


def _finite(curve: LossCurve) -> tuple[Array, Array]:
    known = np.isfinite(curve.loss)
    if not known.any():
        raise ComparisonError(f"compare: {curve.run} has no finite loss; choose another --metric or run")
    return np.asarray(curve.tokens, dtype=float)[known], np.asarray(curve.loss, dtype=float)[known]


def _scaled(interval: Interval, factor: float) -> Interval:
    low, high = interval
    return low * factor, None if high is None else high * factor


def smoothing_width(baseline: Array, candidate: Array, window: float) -> float:
    """Tokens of a window: the share asked for of the baseline's, but MIN_WINDOW_STEPS steps of either curve. 0: none."""
    if window <= 0:
        return 0.0
    steps = max(_spacing(baseline), _spacing(candidate))
    return max(window * float(baseline[-1]), min(MIN_WINDOW_STEPS * steps, float(baseline[-1]) / 4))


def _spacing(tokens: Array) -> float:
    return float(tokens[-1] - tokens[0]) / max(len(tokens) - 1, 1)


def standard_error(
    tokens: Array, loss: Array, smoothed: Array, width: float, *, at_end: bool
) -> float | None:
    """Of a smoothed loss, inside the curve or at its end; None where there are too few steps to tell.

    From the second half's residuals: earlier the loss bends within a window, which is no noise. Their long-run variance
    (Bartlett weights to lag n^(1/3)) is raised by what the smoothing took out of it. A line's value at the end of its
    points has four times the variance of one in their middle.
    """
    half = len(tokens) // 2
    residuals = (loss - smoothed)[half:]
    in_window = width / max(_spacing(tokens), 1e-300)
    lags = max(1, round(len(residuals) ** (1 / 3)))
    if len(residuals) < 8 or in_window <= lags + 1:
        return None
    residuals = residuals - residuals.mean()
    covariances = [
        float((residuals[: len(residuals) - lag] * residuals[lag:]).mean()) for lag in range(lags + 1)
    ]
    long_run = covariances[0] + 2 * sum(
        (1 - lag / (lags + 1)) * covariances[lag] for lag in range(1, lags + 1)
    )
    variance = max(long_run, covariances[0] / 10) / (1 - (lags + 1) / in_window)
    return math.sqrt(variance * (4 / (in_window / 2) if at_end else 1 / in_window))


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


def holding_crossing(x: Array, y: Array, target: float) -> float | None:
    """Where y passes below the target for good, linear between points; None if it does not.

    The place before which y is above the target on the whole and after which it is below: where the falling (isotonic)
    fit to y crosses it. A dip that comes back does not count, and noise moves it to neither side.
    """
    above = np.concatenate(([0.0], np.cumsum(y - target)))
    index = int(np.argmax(above))
    if index == len(y):
        return None
    if index == 0:
        return float(x[0])
    share = float(y[index - 1] - target) / float(y[index - 1] - y[index])
    return float(x[index - 1] + share * (x[index] - x[index - 1]))


def savings(ratio: float) -> str:
    """A ratio in words: `1.95x less` of what the baseline took, or `1.25x more`."""
    return f"{1 / ratio:.2f}x less" if ratio <= 1 else f"{ratio:.2f}x more"


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean by Student's t; None for fewer than two values.

    Seeds are few: a bootstrap over three of them covers the truth only three times in four.
    """
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return mean - half, mean + half
