"""Which milestones are kept, and `checkpoints.csv`, which tells people what there is.

Kept are: the first milestone, the newest few (`runtime.keep_checkpoints`), every one at which a stage ends or some run's stage
stops, every one of the permanent interval, every one that some run has yet to evaluate, and every one that is pinned (something
reads it now). The others are ephemeral: they are what a crash falls back on, and go when newer ones are complete. What runs name and what is pinned is asked of
storage at that moment; nothing is deleted by its age.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from curriculum.errors import InputError
from jobs.runs.evaluation_points import awaiting_evaluation
from jobs.runs.record import named_milestones
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

CSV_COLUMNS = ("stage", "step", "tokens_in_stage", "tokens_total", "permanent", "path", "check")
"""`check` is the beginning of the sha256 of the columns before it."""
BEAT_SECONDS = 30.0
"""Between two beats of a pin."""
PIN_SECONDS = 600.0
"""How long a pin that does not beat still counts."""
_PIN = re.compile(r"(?P<step>\d{9})-[0-9a-f]+\.json")
_DATA = re.compile(r"(?P<step>\d{9})-a(?P<attempt>\d{6})")


class RetentionFailed(RuntimeError):
    """Something old could not be deleted. It takes room; no milestone is the worse for it."""


class Retention:
    """The milestones of one trajectory, as the process that writes them sees them. Markers never change: each is read once."""

    def __init__(self, storage: Storage, step_key: str, *, keep: int = 3):
        """`keep`: newest milestones that stay whatever else is said of them."""
        self._storage = storage
        self._store = StepStore(storage, step_key)
        self._keep = keep
        self._markers: dict[int, dict[str, Any]] = {}
        self._pins = PinWatch(storage, step_key)

    def prune(self, attempt: int) -> None:
        """Delete what nothing needs, markers first, so that a reader never finds one without its data.

        What earlier attempts than `attempt` left half-written goes too. Raises RetentionFailed for what could not be deleted,
        after all the rest was.
        """
        failed: list[tuple[str, Exception]] = []
        markers = self._current()
        kept = self._kept(markers)
        for step in [step for step in markers if step not in kept]:
            data = markers.pop(step)["data"]
            try:
                self._store.retract_milestone(step)
            except Exception as error:
                failed.append((f"the marker of milestone {step}", error))
                continue  # without its marker gone the data stays
            self._delete(data, failed)
        named = {marker["data"].rpartition("/")[2] for marker in markers.values()}
        unread = set(self._store.milestones()) - markers.keys()  # damaged markers: their data stays
        for name in self._storage.children(f"{self._store.key}/checkpoints"):
            match = _DATA.fullmatch(name)
            if match is None or name in named or int(match["step"]) in unread:
                continue
            if int(match["attempt"]) < attempt:
                self._delete(f"{self._store.key}/checkpoints/{name}", failed)
        if failed:
            what, error = failed[0]
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise RetentionFailed(f"{what} could not be deleted ({type(error).__name__}: {error}){more}")

    def _delete(self, key: str, failed: list[tuple[str, Exception]]) -> None:
        try:
            self._storage.delete_tree(key)
        except Exception as error:
            failed.append((f"old checkpoint {key.rpartition('/')[2]}", error))

    def write_csv(self) -> None:
        """Rewrite the trajectory's `checkpoints.csv`, all or nothing."""
        markers = self._current()
        kept = self._kept(markers, newest=False)
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(CSV_COLUMNS)
        for step, marker in markers.items():
            row = [
                str(marker["stage"]),
                str(step),
                str(marker["tokens_in_stage"]),
                str(marker["tokens_total"]),
                "yes" if step in kept else "no",
                self._storage.uri(marker["data"]),
            ]
            table.writerow([*row, _check(row)])
        self._storage.write_bytes(f"{self._store.key}/checkpoints.csv", text.getvalue().encode())

    def _current(self) -> dict[int, dict[str, Any]]:
        """Markers by step, ascending."""
        steps = self._store.milestones()
        for step in steps:
            if step not in self._markers:
                with contextlib.suppress(DamagedRecord):  # it stays, for whoever reads it to say so
                    marker = self._store.milestone(step)
                    if marker is not None:
                        self._markers[step] = marker
        self._markers = {step: self._markers[step] for step in steps if step in self._markers}
        return self._markers

    def _kept(self, markers: dict[int, dict[str, Any]], *, newest: bool = True) -> set[int]:
        steps = list(markers)
        return {
            *steps[:1],
            *(steps[-self._keep :] if newest else ()),
            *(
                step
                for step, marker in markers.items()
                if marker["stage_complete"] or marker.get("permanent")
            ),
            *named_milestones(self._storage, self._store.key),
            *awaiting_evaluation(self._storage, self._store.key, steps),
            *self._pins.live(),
        }


def csv_problem(text: str) -> str:
    """What is wrong with a `checkpoints.csv`; empty when every row is what was written, or has no check (older ones)."""
    header, *rows = list(csv.reader(io.StringIO(text))) or [[]]
    if tuple(header) == CSV_COLUMNS[:-1]:
        return ""
    if tuple(header) != CSV_COLUMNS:
        return "its first line is not the names of its columns"
    wrong = [number for number, row in enumerate(rows, start=2) if not row or row[-1] != _check(row[:-1])]
    return f"line {wrong[0]} is not what was written" if wrong else ""


def _check(row: list[str]) -> str:
    return hashlib.sha256("\0".join(row).encode()).hexdigest()[:16]


class PinWatch:
    """Which milestones are pinned, as one observer sees it: a pin whose beat stands still for PIN_SECONDS of the observer's
    own clock belongs to a reader that died, and no longer counts."""

    def __init__(self, storage: Storage, step_key: str, clock: Callable[[], float] = time.monotonic):
        self._storage, self._folder, self._clock = storage, f"{step_key}/pinned", clock
        self._seen: dict[str, tuple[bytes, float]] = {}
        """Name of a pin -> its last beat, and when that was first seen."""

    def live(self) -> set[int]:
        now, seen, steps = self._clock(), {}, set()
        for name in self._storage.children(self._folder):
            match = _PIN.fullmatch(name)
            if match is None:
                continue
            try:
                beat = self._storage.read_bytes(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
            old, since = self._seen.get(name, (b"", now))
            seen[name] = (beat, since if beat == old else now)
            if now - seen[name][1] < PIN_SECONDS:
                steps.add(int(match["step"]))
        self._seen = seen
        return steps


@contextlib.contextmanager
def pinned(storage: Storage, step_key: str, step: int, reason: str) -> Iterator[None]:
    """Keep a milestone for the block: while it is evaluated, exported or loaded. Any number of pins may hold one.

    A thread renews the pin; it is removed at the end, and stops to count when its process dies. In a storage that may only be
    read nothing is pinned, which is said on stderr.
    """
    key = f"{step_key}/pinned/{step:09d}-{uuid.uuid4().hex[:12]}.json"
    over = threading.Event()

    def beat() -> None:
        storage.write_json(
            key, {"reason": reason, "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
        )

    def keep_beating() -> None:
        while not over.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # the next beat may reach storage
                beat()

    try:
        beat()
    except (OSError, InputError) as error:
        print(f"milestone {step} is read without a pin ({error}); retention may delete it", file=sys.stderr)
        yield
        return
    thread = threading.Thread(target=keep_beating, name="ncp-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(Exception):  # left behind it stops to count by itself
            storage.delete(key)
