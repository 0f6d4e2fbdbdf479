"""How often the intervals that are printed hold the truth: nominal 95 %, simulated."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator

import numpy as np

from jobs.analysis.comparison import LossCurve, match, mean_interval
from jobs.analysis.scaling import LadderPoint, efficiency
from jobs.evaluation.heldout import ratio_interval

REPEATS = 4000
Case = Callable[[np.random.Generator], tuple[tuple[float, float | None] | None, float]]
"""One draw: (interval, truth)."""


def main() -> int:
    print("# Intervals: how often they hold the truth\n")
    print(f"Nominal 95 %. {REPEATS:,} draws a row with a fixed seed; goal 92 to 97 %.\n")
    print("| interval | drawn from | held the truth | truth below | truth above | none |")
    print("|---|---|---:|---:|---:|---:|")
    for name, drawn, case in cases():
        print(row(name, drawn, *coverage(case, REPEATS)), flush=True)
    print(f"\nPython {platform.python_version()}, numpy {np.__version__}.")
    return 0


def coverage(case: Case, repeats: int, seed: int = 0) -> tuple[float, float, float, float]:
    """Shares of the draws that have an interval: truth inside, below, above; and the share that has none."""
    generator = np.random.default_rng(seed)
    held = below = above = none = 0
    for _ in range(repeats):
        interval, truth = case(generator)
        if interval is None:
            none += 1
            continue
        low, high = interval
        if truth < low:
            below += 1
        elif high is not None and truth > high:
            above += 1
        else:
            held += 1
    known = max(repeats - none, 1)
    return held / known, below / known, above / known, none / repeats


def row(name: str, drawn: str, held: float, below: float, above: float, none: float) -> str:
    shares = " | ".join(f"{100 * share:.1f} %" for share in (held, below, above, none))
    return f"| {name} | {drawn} | {shares} |"


def cases() -> Iterator[tuple[str, str, Case]]:
    for count in (3, 5, 10):
        yield "mean over seeds (Student's t)", f"{count} normal seeds", over_seeds(count)
    for steps, sigma, speed, memory, common in (
        (200, 0.03, 1 / 0.513, 0.0, 0.0),
        (200, 0.03, 1 / 0.513, 0.0, 0.7),
        (200, 0.08, 1 / 0.513, 0.0, 0.5),
        (1000, 0.05, 1 / 0.8, 0.0, 0.5),
        (2000, 0.03, 1 / 0.513, 0.3, 0.5),
        (200, 0.03, 1 / 0.662, 0.5, 0.5),
    ):
        drawn = f"{steps} steps, noise {sigma}, autocorrelation {memory}, {100 * common:.0f} % shared, true {1 / speed:.3f}"
        yield "tokens to match, one pair", drawn, one_pair(steps, sigma, speed, memory, common)
    for budgets in (3, 4, 5, 8):
        yield "scaling efficiency (Fieller)", f"{budgets} budgets, log noise 0.003", scaling(budgets, 0.003)
    for documents in (5, 10, 30, 200):
        yield (
            "held-out bits per byte (jackknife, t)",
            f"{documents} documents, log-normal sizes",
            held_out(documents),
        )


def over_seeds(count: int) -> Case:
    return lambda generator: (mean_interval(generator.normal(0.5, 0.1, count).tolist()), 0.5)


def one_pair(steps: int, sigma: float, speed: float, memory: float, common: float) -> Case:
    tokens = np.linspace(1e9 / steps, 1e9, steps)

    def noise(generator: np.random.Generator, share: float) -> np.ndarray:
        own = generator.normal(0, sigma * math.sqrt(share), steps)
        for index in range(1, steps) if memory else ():
            own[index] += memory * own[index - 1]
        return own

    def case(generator: np.random.Generator) -> tuple[tuple[float, float | None] | None, float]:
        shared = noise(generator, common)
        sides = [
            LossCurve(
                run=str(rate),
                tokens=tokens,
                loss=1.7 + 12 * (rate * tokens) ** -0.12 + shared + noise(generator, 1 - common),
                order="same",
            )
            for rate in (1.0, speed)
        ]
        return match(*sides).token_ratio_interval, 1 / speed

    return case


def scaling(budgets: int, sigma: float, gain: float = 1.74) -> Case:
    compute = np.geomspace(1e18, 1e20, budgets)

    def family(generator: np.random.Generator, advantage: float) -> list[LadderPoint]:
        loss = 2.759 * (compute * advantage / 1e19) ** -0.052 * np.exp(generator.normal(0, sigma, budgets))
        return [
            LadderPoint(budget=float(budget), parameters=1e9, tokens=1e9, loss=float(value))
            for budget, value in zip(compute, loss, strict=True)
        ]

    return lambda generator: (
        efficiency(family(generator, 1.0), family(generator, gain)).ratio_interval,
        gain,
    )


def held_out(documents: int) -> Case:
    def case(generator: np.random.Generator) -> tuple[tuple[float, float | None] | None, float]:
        sizes = np.exp(generator.normal(7, 0.8, documents))
        bits = sizes * (1.2 + generator.normal(0, 0.25, documents))
        return ratio_interval(bits, sizes), 1.2

    return case


if __name__ == "__main__":
    raise SystemExit(main())
