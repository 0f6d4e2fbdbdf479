"""How often a step is tried again, by what went wrong.

Three classes. `user` (bad input) is never tried again, since trying cannot help. `preemption` (the machine was taken
away, as announced by whoever lent it) has a large budget of its own and costs nothing else. `infrastructure` (a lost
worker, a full disk, an unreachable store) has a small budget with exponential backoff and jitter; *progress refills it*,
because a month of training sees more faults than any fixed number, while a fault that comes back at the same place
without a new milestone in between must end the run.

Budgets belong to one invocation of the runner. Running again starts with full ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

USER, PREEMPTION, INFRASTRUCTURE = "user", "preemption", "infrastructure"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Numbers of new attempts by class, and the pauses between them. Runtime, never identity."""

    infrastructure: int = 3
    """In a row without progress."""
    preemption: int = 1000
    """In all."""
    backoff_seconds: float = 1.0
    """Pause before the first new attempt; doubled with each further failure without progress."""
    backoff_limit_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in ("infrastructure", "preemption", "backoff_seconds", "backoff_limit_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"retry.{name}: {getattr(self, name)} is negative; use 0 or more")


class RetryBudget:
    """What is left for one step."""

    def __init__(self, policy: RetryPolicy, *, draw: Callable[[], float] = random.random):
        """`draw` gives uniform numbers in [0, 1): jitter, so that a cluster's steps do not all come back at once."""
        self._policy = policy
        self._draw = draw
        self._failures = 0
        self._preemptions = 0

    def spend(self, kind: str, *, progressed: bool) -> float | None:
        """Seconds to wait before the next attempt after a failure of class `kind`, or None when there is none.

        `progressed`: whether a milestone was published since the failure before.
        """
        if progressed:
            self._failures = 0
        if kind == USER:
            return None
        if kind == PREEMPTION:
            self._preemptions += 1
            return None if self._preemptions > self._policy.preemption else self._pause(0)
        self._failures += 1
        return None if self._failures > self._policy.infrastructure else self._pause(self._failures - 1)

    def left(self, kind: str) -> int:
        """New attempts that are left for failures of class `kind`."""
        if kind == USER:
            return 0
        if kind == PREEMPTION:
            return max(0, self._policy.preemption - self._preemptions)
        return max(0, self._policy.infrastructure - self._failures)

    def _pause(self, doublings: int) -> float:
        """Half of it fixed, half of it drawn."""
        longest = min(
            self._policy.backoff_limit_seconds, self._policy.backoff_seconds * 2.0 ** min(doublings, 60)
        )
        return longest * (0.5 + 0.5 * self._draw())
