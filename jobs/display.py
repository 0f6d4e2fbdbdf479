"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere.

The line is read from storage, like `ncp status` does, so that both always say the same.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from jobs.status import duration, progress_text
from jobs.transition import read_transition, transition_banner
from pipeline.dag.runner import Event
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage

TERMINAL_SECONDS = 0.5
PLAIN_SECONDS = 5.0


class RunDisplay:
    """Prints events as they come and the running step's progress in between. A context manager."""

    def __init__(
        self,
        storage: Storage,
        steps: int,
        *,
        stream: TextIO | None = None,
        keep: Callable[[str], None] | None = None,
    ):
        """`keep` is given every line too, for the run's log."""
        self._keep = keep or (lambda line: None)
        self._storage = storage
        self._total = steps
        self._over = 0
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._running: tuple[Step, int] | None = None
        self._banner_for: tuple[str, int] | None = None
        self._last_text = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="display", daemon=True)

    def __enter__(self) -> RunDisplay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._live:
            self._write("\r\033[K")

    def on_event(self, event: Event) -> None:
        """For `run_steps`: one line an event."""
        with self._lock:
            if event.kind in ("done", "cached", "failed", "blocked"):
                self._over += 1
                self._running = None
            elif event.kind == "started":
                self._running = (event.step, event.attempt)
            elif event.kind == "retrying":
                self._running = None
            self.line(self._event_text(event))

    def line(self, text: str) -> None:
        """A permanent line."""
        self._keep(text)
        self._write(f"\r\033[K{text}\n" if self._live else f"{text}\n")

    def _event_text(self, event: Event) -> str:
        name = f"[{self._over}/{self._total}] {event.step.name}"
        match event.kind:
            case "started":
                attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
                return f"{name}: started ({event.step.fingerprint[:12]}{attempt})"
            case "done":
                return f"{name}: done in {duration(event.seconds)}"
            case "cached":
                return f"{name}: already done ({event.step.fingerprint[:12]})"
            case _:
                return f"{name}: {event.kind}: {event.detail}"

    def _poll(self) -> None:
        while not self._stop.wait(TERMINAL_SECONDS if self._live else PLAIN_SECONDS):
            with self._lock:
                if self._running is not None:
                    self._show(*self._running)

    def _show(self, step: Step, attempt: int) -> None:
        if step.milestone is not None and self._banner_for != (step.name, attempt):
            transition = read_transition(self._storage, step.key)
            if transition is not None:
                self._banner_for = (step.name, attempt)
                self.line(f"  {transition_banner(transition)}")
        progress = step_store(self._storage, step).progress()
        if progress is None or progress["attempt"] != attempt:
            return
        text = f"  {step.name}  {progress_text(progress)}"
        if text == self._last_text:
            return
        self._last_text = text
        self._keep(text)
        self._write(f"\r\033[K{text}" if self._live else f"{time.strftime('%H:%M:%S')}{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
