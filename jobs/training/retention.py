"""Which milestones are kept, and `checkpoints.csv`, which tells people what there is.

Kept are: the first milestone, the newest, every one at which a stage ends or some run's stage stops, every one of the
permanent interval, every one that some run has yet to evaluate, and every one that is pinned (something reads it now, or
started from it). The others are ephemeral:
they are what a crash falls back on, and go when a newer one is complete. What runs name and what is pinned is asked of
storage at that moment; nothing is deleted by its age.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from jobs.evaluation_runs.points import awaiting_evaluation
from jobs.runs import named_milestones
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

CSV_COLUMNS = ("stage", "step", "tokens_in_stage", "tokens_total", "permanent", "path")
_DATA = re.compile(r"(?P<step>\d{9})-a(?P<attempt>\d{6})")


class Retention:
    """The milestones of one trajectory, as the process that writes them sees them. Markers never change: each is read once."""

    def __init__(self, storage: Storage, step_key: str):
        self._storage = storage
        self._store = StepStore(storage, step_key)
        self._markers: dict[int, dict[str, Any]] = {}

    def prune(self, attempt: int) -> None:
        """Delete what nothing needs, markers first, so that a reader never finds one without its data.

        What earlier attempts than `attempt` left half-written goes too. Raises OSError for what could not be deleted, after
        all the rest was.
        """
        failed: list[OSError] = []
        markers = self._current()
        kept = self._kept(markers)
        for step in [step for step in markers if step not in kept]:
            self._store.retract_milestone(step)
            self._delete(markers[step]["data"], failed)
            del markers[step]
        named = {marker["data"].rpartition("/")[2] for marker in markers.values()}
        for name in self._storage.children(f"{self._store.key}/checkpoints"):
            match = _DATA.fullmatch(name)
            if match and name not in named and int(match["attempt"]) < attempt:
                self._delete(f"{self._store.key}/checkpoints/{name}", failed)
        if failed:
            raise failed[0]

    def _delete(self, key: str, failed: list[OSError]) -> None:
        try:
            self._storage.delete_tree(key)
        except OSError as error:
            failed.append(error)

    def write_csv(self) -> None:
        """Rewrite the trajectory's `checkpoints.csv`, all or nothing."""
        markers = self._current()
        kept = self._kept(markers, newest=False)
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(CSV_COLUMNS)
        for step, marker in markers.items():
            table.writerow(
                [
                    marker["stage"],
                    step,
                    marker["tokens_in_stage"],
                    marker["tokens_total"],
                    "yes" if step in kept else "no",
                    self._storage.uri(marker["data"]),
                ]
            )
        self._storage.write_bytes(f"{self._store.key}/checkpoints.csv", text.getvalue().encode())

    def _current(self) -> dict[int, dict[str, Any]]:
        """Markers by step, ascending."""
        steps = self._store.milestones()
        for step in steps:
            if step not in self._markers:
                marker = self._store.milestone(step)
                if marker is not None:
                    self._markers[step] = marker
        self._markers = {step: self._markers[step] for step in steps if step in self._markers}
        return self._markers

    def _kept(self, markers: dict[int, dict[str, Any]], *, newest: bool = True) -> set[int]:
        steps = list(markers)
        return {
            *steps[:1],
            *(steps[-1:] if newest else ()),
            *(
                step
                for step, marker in markers.items()
                if marker["stage_complete"] or marker.get("permanent")
            ),
            *named_milestones(self._storage, self._store.key),
            *awaiting_evaluation(self._storage, self._store.key, steps),
            *pinned_milestones(self._storage, self._store.key),
        }


def pin_milestone(storage: Storage, step_key: str, step: int, reason: str) -> str:
    """Keep a milestone until `unpin_milestone` is given what this returns. Any number of pins may hold one."""
    key = f"{step_key}/pinned/{step:09d}-{uuid.uuid4().hex[:12]}.json"
    storage.write_json(key, {"reason": reason, "at": time.time()})
    return key


def unpin_milestone(storage: Storage, pin: str) -> None:
    storage.delete(pin)


def pinned_milestones(storage: Storage, step_key: str) -> set[int]:
    return {int(name[:9]) for name in storage.children(f"{step_key}/pinned") if name.endswith(".json")}


@contextlib.contextmanager
def pinned(storage: Storage, step_key: str, step: int, reason: str) -> Iterator[None]:
    """Keep a milestone for the block: while it is evaluated, exported or loaded by another stage."""
    pin = pin_milestone(storage, step_key, step, reason)
    try:
        yield
    finally:
        unpin_milestone(storage, pin)
