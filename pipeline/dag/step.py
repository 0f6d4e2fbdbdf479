"""A step: what is computed, and what it hangs on.

A step is *named* by its identity: the fingerprint of (kind, version, identity), where the identity holds the
fingerprints of the steps it is computed from. So a change anywhere upstream gives a new step with a new directory,
and an old output is never overwritten or mistaken for the new one.

Two kinds of completion: an ordinary step is done when its receipt exists; a training trajectory
is endless in itself and *publishes milestones*, and is done for a run when the milestone at the run's stop exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from curriculum.identity import UNKNOWN, fingerprint


@dataclass(frozen=True, kw_only=True)
class Step:
    """One node of the DAG. Immutable and free of I/O."""

    name: str
    """Unique in a run, and readable: it begins the name of the output directory."""
    kind: str
    """Which executor computes it."""
    version: int
    """Bumped by hand when the executor's result changes for the same identity."""
    identity: Mapping[str, Any]
    """Plain values that decide the result, including the fingerprints of what it is computed from."""
    needs: tuple[str, ...] = ()
    """Steps whose output is read; one that fails makes this one impossible."""
    after: tuple[str, ...] = ()
    """Steps that only have to be over, whatever came of them."""
    milestone: int | None = None
    """The milestone at which this run is content; None for a step with a receipt."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What it occupies while it runs, such as {"CPU": 1.0}; runtime, never hashed."""

    @cached_property
    def fingerprint(self) -> str:
        """sha256 in hex, or UNKNOWN while a source it hangs on has no pin."""
        return fingerprint(self.described)

    @cached_property
    def described(self) -> dict[str, Any]:
        """What is hashed, and kept beside the output as `identity.json`."""
        return {"kind": self.kind, "version": self.version, "identity": self.identity}

    @property
    def known(self) -> bool:
        return self.fingerprint != UNKNOWN

    @property
    def key(self) -> str:
        """Storage key of the output directory. Only for a step whose fingerprint is known."""
        if not self.known:
            raise ValueError(f"step {self.name}: its fingerprint is {UNKNOWN}; pin the sources first")
        return f"steps/{self.name}-{self.fingerprint[:12]}"


def check_graph(steps: Sequence[Step]) -> None:
    """Raise ValueError unless names are unique and every edge points to an earlier step (so there is no cycle)."""
    seen: set[str] = set()
    for step in steps:
        if step.name in seen:
            raise ValueError(f"step {step.name}: the name is used twice; rename one")
        for other in (*step.needs, *step.after):
            if other not in seen:
                raise ValueError(f"step {step.name}: hangs on {other!r}, which is not an earlier step")
        seen.add(step.name)
