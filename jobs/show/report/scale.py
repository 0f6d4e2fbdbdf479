"""Axes and curves for eyes: ticks, and the thinning of long curves."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pipeline.quantities import si

Array = NDArray[np.float64]


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high]; with 2 and 5 between them when there would be fewer than three."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**e for e in exponents if low <= 10.0**e <= high]
    if len(ticks) < 3:
        ticks = [f * 10.0**e for e in exponents for f in (1, 2, 5) if low <= f * 10.0**e <= high]
    return ticks or [low]


def si_ticks(ticks: Iterable[float]) -> list[str]:
    """Labels of axis ticks: the shortest `si` form that still tells neighbours apart."""
    ticks = list(ticks)
    for digits in range(1, 8):
        labels = [si(tick, digits) for tick in ticks]
        if len(set(labels)) == len(labels):
            break
    return labels


def thin(x: Array, y: Array, buckets: int) -> tuple[Array, Array]:
    """At most four points a bucket: first, lowest, highest and last, in order, so that no extreme is lost.

    Missing values (NaN) split a curve; every run of them stays one missing point, so that a gap stays a gap.
    """
    if len(x) <= 4 * buckets:
        return x, y
    keep: list[int] = []
    for part in np.array_split(np.arange(len(x)), buckets):
        values = y[part]
        finite = part[np.isfinite(values)]
        if len(finite) == 0:
            keep.append(int(part[0]))
            continue
        chosen = {
            int(part[0]),
            int(part[-1]),
            int(finite[np.argmin(y[finite])]),
            int(finite[np.argmax(y[finite])]),
        }
        keep.extend(sorted(chosen))
    return x[keep], y[keep]


def smooth(y: Array, window: int) -> Array:
    """Centred moving mean over the finite values of `window` points; NaN where there is none.

    Towards both ends the window shrinks, always symmetric, so that a steep beginning is not flattened.
    """
    finite = np.isfinite(y)
    sums = np.concatenate(([0.0], np.cumsum(np.where(finite, y, 0.0))))
    counts = np.concatenate(([0], np.cumsum(finite)))
    index = np.arange(len(y))
    half = np.minimum(window // 2, np.minimum(index, len(y) - 1 - index))
    total = counts[index + half + 1] - counts[index - half]
    means = (sums[index + half + 1] - sums[index - half]) / np.maximum(total, 1)
    return np.where(total > 0, means, np.nan)
