"""What a person sees while a run goes on: one live line a running step in a terminal, plain lines elsewhere.

The lines are read from storage, like `ncp status` does, so that both always say the same.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from jobs.runs.status import progress_text
from jobs.training.transition import read_transition, transition_banner
from pipeline.answers import patience
from pipeline.dag.runner import Event
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.data.accounts import account_line
from pipeline.quantities import duration
from pipeline.redaction import redact
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
        self._running: dict[str, tuple[Step, int]] = {}
        self._banners: set[tuple[str, int]] = set()
        self._texts: dict[str, str] = {}
        """Step -> what was last shown of it."""
        self._live_lines = 0
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
        self._erase()

    def on_event(self, event: Event) -> None:
        """For `run_steps`: one line an event."""
        with self._lock:
            if event.kind in ("done", "cached", "failed", "blocked", "refused"):
                self._over += 1
            if event.kind == "started":
                self._running[event.step.name] = (event.step, event.attempt)
            else:
                self._running.pop(event.step.name, None)
            self._line(self._event_text(event))

    def line(self, text: str) -> None:
        """A permanent line."""
        with self._lock:
            self._line(text)

    def _line(self, text: str) -> None:
        text = redact(text)
        self._keep(text)
        self._erase()
        self._write(f"{text}\n")

    def _event_text(self, event: Event) -> str:
        name = f"[{self._over}/{self._total}] {event.step.name}"
        match event.kind:
            case "started":
                attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
                return f"{name}: started ({event.step.fingerprint[:12]}{attempt})"
            case "done":
                return f"{name}: done in {duration(event.seconds)}{self._account(event.step)}"
            case "cached":
                return f"{name}: already done ({event.step.fingerprint[:12]})"
            case _:
                return f"{name}: {event.kind}: {event.detail}"

    def _account(self, step: Step) -> str:
        """What a data step read, wrote, left out; nothing when storage does not answer now."""
        if step.kind not in ("cleaning", "shards"):
            return ""
        with contextlib.suppress(OSError, ValueError, KeyError):
            line = account_line(step_store(self._storage, step).receipt() or {})
            return f": {line}" if line else ""
        return ""

    def _poll(self) -> None:
        while not self._stop.wait(TERMINAL_SECONDS if self._live else PLAIN_SECONDS):
            # A storage that does not answer now is read again at the next turn.
            with contextlib.suppress(Exception), patience(PLAIN_SECONDS, PLAIN_SECONDS):
                self._show(list(self._running.values()))

    def _show(self, running: list[tuple[Step, int]]) -> None:
        """Read the running steps' progress, then show it; storage is not waited for while events come in."""
        banners, texts = [], {}
        for step, attempt in running:
            if step.milestone is not None and (step.name, attempt) not in self._banners:
                transition = read_transition(self._storage, step.key)
                if transition is not None and transition.get("attempt") == attempt:
                    self._banners.add((step.name, attempt))
                    banners.append(f"  {transition_banner(transition)}")
            progress = step_store(self._storage, step).progress()
            if progress is not None and progress["attempt"] == attempt:
                texts[step.name] = f"  {step.name}  {progress_text(progress)}"
        with self._lock:
            for banner in banners:
                self._line(banner)
            texts = {name: text for name, text in texts.items() if name in self._running}
            changed = [text for name, text in texts.items() if text != self._texts.get(name)]
            self._texts |= texts
            for text in changed:
                self._keep(text)
                if not self._live:
                    self._write(f"{time.strftime('%H:%M:%S')}{text}\n")
            if self._live and (changed or self._live_lines != len(texts)):
                self._erase()
                width = shutil.get_terminal_size().columns - 1
                self._write("\n".join(text[:width] for text in texts.values()))
                self._live_lines = len(texts)

    def _erase(self) -> None:
        """Take the live lines away, so that what is written next stands in their place."""
        if self._live_lines:
            self._write("\r\033[K" + "\033[A\033[K" * (self._live_lines - 1))
            self._live_lines = 0

    def _write(self, text: str) -> None:
        """A terminal that is gone (a closed pipe, a lost session), or knows fewer letters, ends no run: its lines go to the log alone."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
