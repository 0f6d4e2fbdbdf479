"""Which step may start next: edges, a bound on resources, and the longest road first. Pure: no clock, no threads.

A step is ready once every step it needs is done and every step it comes after is over. Of the ready steps the one with
the longest chain of steps hanging on it goes first (Hu's highest-level-first rule), of two equal ones the larger, then
the earlier in the list; so training never queues behind evaluations that nothing waits for. Steps whose claims do not
fit beside those that run are passed over for smaller ones, and a step that fits nowhere starts when nothing else claims
anything, so that nothing waits for ever.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from pipeline.dag.step import Step

_Claim = tuple[tuple[str, float], ...]
_ROUNDING = 1e-9


class Schedule:
    """The open steps of one run. All operations together are linear in steps and edges (times log of the ready ones)."""

    def __init__(self, steps: Sequence[Step], capacity: Mapping[str, float]):
        """`capacity`: what the running steps' `resources` may add up to; a resource that is not named is not bounded."""
        self._steps = list(steps)
        self._index = {step.name: index for index, step in enumerate(steps)}
        self._capacity = dict(capacity)
        self._dependants: list[list[int]] = [[] for _ in steps]
        self._missing = [len({*step.needs, *step.after}) for step in steps]
        for index, step in enumerate(steps):
            for name in {*step.needs, *step.after}:
                self._dependants[self._index[name]].append(index)
        self._levels = [0] * len(steps)
        for index in reversed(range(len(steps))):
            self._levels[index] = 1 + max(
                (self._levels[other] for other in self._dependants[index]), default=0
            )
        self._ready: dict[_Claim, list[tuple[int, float, int]]] = {}
        self._used: dict[str, float] = {}
        self._claiming = 0
        """Running steps that claim anything."""
        self._culprits: dict[str, str] = {}
        for index, missing in enumerate(self._missing):
            if missing == 0:
                self._push(index)

    def start_next(self) -> Step | None:
        """Take the next step that may start now; None when none may."""
        heads = [(queue[0], claim) for claim, queue in self._ready.items() if queue]
        for (_, _, index), claim in sorted(heads):
            if self._claiming == 0 or self._fits(claim):
                heapq.heappop(self._ready[claim])
                self._claiming += bool(claim)
                for resource, amount in claim:
                    self._used[resource] = self._used.get(resource, 0.0) + amount
                return self._steps[index]
        return None

    def put_off(self, step: Step) -> None:
        """A started step is not over but waits (for its holder, for its next attempt): its resources are free again."""
        self._release(step)

    def resume(self, step: Step) -> None:
        """A step that was put off may start again."""
        self._push(self._index[step.name])

    def finish(self, step: Step, *, failed: bool) -> list[tuple[Step, str]]:
        """A started step is over. Returns the steps that can now never run, each with the failed step it hangs on."""
        self._release(step)
        blocked: list[tuple[Step, str]] = []
        over = deque([self._index[step.name]])
        if failed:
            self._culprits[step.name] = step.name
        while over:
            index = over.popleft()
            for other in self._dependants[index]:
                self._missing[other] -= 1
                if self._missing[other]:
                    continue
                culprit = next(
                    (self._culprits[name] for name in self._steps[other].needs if name in self._culprits),
                    None,
                )
                if culprit is None:
                    self._push(other)
                else:
                    self._culprits[self._steps[other].name] = culprit
                    blocked.append((self._steps[other], culprit))
                    over.append(other)
        return blocked

    def _push(self, index: int) -> None:
        claim = tuple(sorted(self._steps[index].resources.items()))
        size = sum(self._steps[index].resources.values())
        heapq.heappush(self._ready.setdefault(claim, []), (-self._levels[index], -size, index))

    def _release(self, step: Step) -> None:
        self._claiming -= bool(step.resources)
        for resource, amount in step.resources.items():
            self._used[resource] -= amount

    def _fits(self, claim: _Claim) -> bool:
        return all(
            self._used.get(resource, 0.0) + amount <= self._capacity[resource] + _ROUNDING
            for resource, amount in claim
            if resource in self._capacity
        )
