"""A worker that stands still is noticed: every thread's stack is written to storage, and the process ends.

Collectives wait for ever when one rank is gone quiet. Each worker's watchdog expects `step_taken` at least every
`timeout_seconds`; when it does not come, the stacks say where the worker stood, and ending the process lets Ray Train
take the group down, so that the next attempt resumes from the newest milestone. It ends within seconds of the time-out
even where storage is what hangs: the stacks go to stderr first. The rank that hangs cannot always do
this itself (it may be stopped), but the ranks that wait for it can.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
import threading
import time
from types import TracebackType

from jobs.runs.alerts import Alert, write_alert
from jobs.runs.stop import mark_attempt_failed
from pipeline.answers import patience
from pipeline.storage import Storage

EXIT_CODE = 70
LAST_WORDS_SECONDS = 10.0
"""How long a worker that is ended may take to say why."""


class Watchdog:
    """Watches one worker. A context manager; off when `timeout_seconds` is 0."""

    def __init__(
        self, storage: Storage, step_key: str, attempt: int, rank: int, timeout_seconds: float, run: str = ""
    ):
        self._storage = storage
        self._step_key, self._attempt, self._rank, self._run = step_key, attempt, rank, run
        self._key = f"{step_key}/stacks/{attempt:06d}-rank{rank}.txt"
        self._timeout = timeout_seconds
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._timeout > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def step_taken(self) -> None:
        """The worker is alive and moving."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._timeout / 4)):
            still = time.monotonic() - self._last
            if still > self._timeout:
                witness = threading.Thread(target=self._testify, args=(still,), daemon=True)
                try:
                    witness.start()
                    witness.join(LAST_WORDS_SECONDS)
                finally:
                    os._exit(EXIT_CODE)

    def _testify(self, still: float) -> None:
        """Say why, first where no storage is needed. A store that hangs with the worker hears the rest or not."""
        stacks = self._stacks(still)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(stacks.decode(errors="replace"))
            sys.stderr.flush()
        with patience(LAST_WORDS_SECONDS, LAST_WORDS_SECONDS / 2):
            for write in (
                lambda: mark_attempt_failed(self._storage, self._step_key, self._attempt),
                lambda: self._storage.write_bytes(self._key, stacks),
                lambda: self._alert(still),
            ):
                with contextlib.suppress(Exception):  # each for itself
                    write()

    def _alert(self, still: float) -> None:
        message = (
            f"rank {self._rank} took no step for {still:.0f} seconds and was ended; its stacks: {self._key}"
        )
        alert = Alert(
            kind="stall",
            severity="error",
            message=message,
            step=None,
            attempt=self._attempt,
            run=self._run,
        )
        write_alert(self._storage, self._step_key, alert, who=f"rank{self._rank}")

    def _stacks(self, still: float) -> bytes:
        with tempfile.TemporaryFile() as file:
            file.write(
                f"no step for {still:.0f} seconds (runtime.hang_timeout_seconds {self._timeout:g})\n\n".encode()
            )
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()
