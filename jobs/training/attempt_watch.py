"""Talking to storage beside the training: where this attempt stands, whether it was told to stop, whether it still holds.

Each look costs tens of milliseconds on object storage, so it is not taken in a step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from jobs.runs.stop import attempt_stop_requested
from pipeline.answers import patience
from pipeline.dag.lease import LeaseBook
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

WATCH_SECONDS = 1.0
LOOK_SECONDS = 5.0
"""How long a look waits for storage."""


class AttemptWatch:
    """A thread that writes the newest progress and asks for stop requests and later leases every second.

    A look that fails (storage is away for a moment) is taken again a second later: whether training can go on without
    storage is decided where a milestone is written, not here.
    """

    def __init__(self, storage: Storage, step_key: str, attempt: int):
        self._store = StepStore(storage, step_key)
        self._book = LeaseBook(storage, step_key)
        self._attempt = attempt
        self._progress: Mapping[str, Any] | None = None
        self._written: Mapping[str, Any] | None = None
        self.stop_wanted = False
        self.superseded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="attempt-watch", daemon=True)
        self._thread.start()

    def progress(self, record: Mapping[str, Any]) -> None:
        """Where the attempt stands now; written at the next look."""
        self._progress = record

    def close(self) -> None:
        """End the thread, with one last look."""
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(WATCH_SECONDS):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(Exception), patience(LOOK_SECONDS, LOOK_SECONDS):
            self.superseded = self.superseded or self._book.highest() != self._attempt
            self.stop_wanted = self.stop_wanted or attempt_stop_requested(
                self._store.storage, self._store.key, self._attempt
            )
            self._write_progress()

    def _write_progress(self) -> None:
        record = self._progress
        if record is not None and record is not self._written and not self.superseded:
            self._store.write_progress(self._attempt, dict(record))
            self._written = record
