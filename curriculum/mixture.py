"""A mixture as integers: how many windows of each source a block holds.

Weights become counts that sum to the block by the largest-remainder (Hamilton) method, as in OLMo-core's source
mixtures, so the mixture is exact in every block and there is no rounding to argue about later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction


def block_counts(weights: Mapping[str, float], block: int) -> dict[str, int]:
    """Windows of each source in a block of `block` windows; the counts sum to `block`, keys are in sorted order.

    The arithmetic is exact (rationals of the weights as given). Equal remainders go to the name that sorts first.
    Raises ValueError for no weights, a negative or non-finite weight, all zeros, or a positive weight whose share
    of the block is less than half a window, so that it would vanish without a word.
    """
    if block < 1:
        raise ValueError(f"order_block: {block} is not a number of windows; use at least 1")
    if not weights:
        raise ValueError("mixture: no sources; name at least one source and its weight")
    for name, weight in weights.items():
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"mixture.{name}: weight {weight!r} must be a finite number >= 0")
    names = sorted(weights)
    exact = {name: Fraction(weights[name]) for name in names}
    total = sum(exact.values())
    if total == 0:
        raise ValueError(
            f"mixture: every weight is 0 ({', '.join(names)}); give one source a positive weight"
        )

    shares = {name: exact[name] * block / total for name in names}
    counts = {name: math.floor(shares[name]) for name in names}
    missing = block - sum(counts.values())
    by_remainder = sorted(names, key=lambda name: (counts[name] - shares[name], name))
    for name in by_remainder[:missing]:
        counts[name] += 1

    for name in names:
        if exact[name] > 0 and counts[name] == 0:
            raise ValueError(
                f"mixture.{name}: weight {weights[name]!r} is less than one window in a block of {block}; "
                f"raise order_block to at least {math.ceil(total / exact[name])} or drop the source"
            )
    return counts
