"""What storage says about a step: its identity, receipt, milestones, progress and failures.

Layout of one step directory, `steps/{name}-{fingerprint[:12]}/`:

    identity.json                what was hashed
    lease/000001.json .beat .end numbered leases (pipeline.dag.lease)
    receipt.json                 done, and with what result
    milestones/000000400.json    a complete checkpoint of a trajectory; written last, exclusively
    progress/000001.json         overwritten by the running attempt: where it is
    failures/000001.json         why an attempt ended

Everything here is read from storage at the moment of asking; nothing is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pipeline.dag.lease import Held, LeaseBook, Sealed, numbered
from pipeline.dag.step import Step
from pipeline.storage import Storage


class StepStore:
    """The stored state of one step directory."""

    def __init__(self, storage: Storage, key: str):
        self.storage = storage
        self.key = key

    # --- completion ----------------------------------------------------------------------------------------

    def receipt(self) -> dict[str, Any] | None:
        """The receipt of a finished step, or None. Completes a receipt whose writer died after sealing."""
        key = f"{self.key}/receipt.json"
        if self.storage.exists(key):
            return self.storage.read_json(key)
        found = LeaseBook(self.storage, self.key).look()
        if not isinstance(found, Sealed):
            return None
        self.complete_receipt(found.receipt)
        return found.receipt

    def complete_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Copy what was sealed to `receipt.json`; every copy is the same, so any writer may win."""
        self.storage.create_json(f"{self.key}/receipt.json", dict(receipt))

    def milestones(self) -> list[int]:
        """Steps of all complete milestones, ascending."""
        return numbered(self.storage, f"{self.key}/milestones", digits=9)

    def milestone(self, step: int) -> dict[str, Any] | None:
        """The marker of milestone `step`, or None."""
        key = self._milestone_key(step)
        return self.storage.read_json(key) if self.storage.exists(key) else None

    def newest_milestone(self, at_most: int) -> int | None:
        """The newest complete milestone that is not beyond `at_most`."""
        return max((step for step in self.milestones() if step <= at_most), default=None)

    def publish_milestone(self, step: int, marker: Mapping[str, Any]) -> bool:
        """Write the marker of a checkpoint whose data is complete. False if another attempt already did."""
        return self.storage.create_json(self._milestone_key(step), dict(marker))

    def retract_milestone(self, step: int) -> None:
        """Remove a marker, before its data is deleted (retention)."""
        self.storage.delete(self._milestone_key(step))

    def published(self, step: Step) -> bool:
        """Whether the step is done, by one look. False for a step whose writer died between sealing and its receipt."""
        if step.milestone is None:
            return self.storage.exists(f"{self.key}/receipt.json")
        return self.storage.exists(self._milestone_key(step.milestone))

    def done(self, step: Step) -> bool:
        if step.milestone is None:
            return self.receipt() is not None
        return self.storage.exists(self._milestone_key(step.milestone))

    def _milestone_key(self, step: int) -> str:
        return f"{self.key}/milestones/{step:09d}.json"

    # --- records -------------------------------------------------------------------------------------------

    def write_identity(self, step: Step) -> None:
        self.storage.create_json(f"{self.key}/identity.json", step.described)

    def identity(self) -> dict[str, Any] | None:
        key = f"{self.key}/identity.json"
        return self.storage.read_json(key) if self.storage.exists(key) else None

    def write_progress(self, attempt: int, progress: Mapping[str, Any]) -> None:
        self.storage.write_json(f"{self.key}/progress/{attempt:06d}.json", {**progress, "at": time.time()})

    def progress(self) -> dict[str, Any] | None:
        """The newest attempt's progress, with its `attempt`; None when none was written."""
        return self._newest("progress")

    def write_failure(self, attempt: int, failure: Mapping[str, Any]) -> None:
        self.storage.write_json(f"{self.key}/failures/{attempt:06d}.json", {**failure, "at": time.time()})

    def failure(self) -> dict[str, Any] | None:
        """The newest failure, with its `attempt`; None when no attempt failed."""
        return self._newest("failures")

    def _newest(self, folder: str) -> dict[str, Any] | None:
        numbers = numbered(self.storage, f"{self.key}/{folder}", digits=6)
        if not numbers:
            return None
        return {
            **self.storage.read_json(f"{self.key}/{folder}/{numbers[-1]:06d}.json"),
            "attempt": numbers[-1],
        }

    def held(self) -> Held | None:
        """The living holder as far as one look can tell: a holder elsewhere counts until its heartbeat is watched."""
        found = LeaseBook(self.storage, self.key).look()
        return found if isinstance(found, Held) else None


def step_store(storage: Storage, step: Step) -> StepStore:
    return StepStore(storage, step.key)
