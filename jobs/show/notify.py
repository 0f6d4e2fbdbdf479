"""Telling people outside: a webhook and a command, on a run's end and on every alert.

The driver does it, in a thread: workers need no way out, and a webhook that is slow, refuses or is gone never holds the
run up; that it failed is a line in the run's log. The payload is JSON: `event` (`done`, `failed`, `refused` or `alert`),
`run`, `step`, `severity`, `message`, `at`, and `text`, one line that chat services show. A command gets it on its
standard input, and `NCP_EVENT`, `NCP_RUN` and `NCP_TEXT` in its environment.

A webhook's URL is often a secret. `runtime.notify.url` is kept in the run's record like everything else of the recipe;
the environment variable `NCP_NOTIFY_URL` of the driver takes its place and is written nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from curriculum.schema import NotifySpec
from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.recorded import reading
from pipeline.answers import patience
from pipeline.dag.runner import Outcome, Stopped
from pipeline.dag.step import Step
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

URL_VARIABLE = "NCP_NOTIFY_URL"
SEND_SECONDS = 10.0
POLL_SECONDS = 5.0
CLOSE_SECONDS = 30.0


class Notifier:
    """A context manager around a run; does nothing when neither a URL nor a command is given."""

    def __init__(
        self,
        storage: Storage,
        run: str,
        steps: Sequence[Step],
        spec: NotifySpec,
        *,
        say: Callable[[str], None],
        poll_seconds: float = POLL_SECONDS,
    ):
        """`say` takes a line for the run's log, from any thread."""
        self._storage, self._run, self._say = storage, run, say
        self._trained = {step.name: step.key for step in steps if step.milestone is not None and step.known}
        self._url = os.environ.get(spec.url_env or URL_VARIABLE) or spec.url
        self._command = shlex.split(spec.command)
        self._poll_seconds = poll_seconds
        self._seen: set[str] = set()
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="notify", daemon=True)

    @property
    def enabled(self) -> bool:
        return bool(self._url or self._command)

    def __enter__(self) -> Notifier:
        if self.enabled:
            with contextlib.suppress(Exception):
                self._seen = {
                    key for step in self._trained.values() for key in alert_keys(self._storage, step)
                }
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.enabled:
            return
        if isinstance(error, Exception) and not isinstance(error, Stopped):  # a signal is a stop, no failure
            self._put("failed", None, "error", f"{type(error).__name__}: {error}")
        self._over.set()
        self._thread.join(CLOSE_SECONDS)

    def ended(self, outcome: Outcome) -> None:
        """Tell how the run ended, its steps' failures in one message."""
        if outcome.ok:
            self._put("done", None, "info", f"all {len(outcome.done)} steps are done")
            return
        refused = bool(outcome.failed) and all(failure.refused for failure in outcome.failed.values())
        told = [f"{step}: {failure.message}" for step, failure in outcome.failed.items()]
        told += [f"{step}: not run, because {culprit} failed" for step, culprit in outcome.blocked.items()]
        event = "refused" if refused else "failed"
        self._put(event, next(iter(outcome.failed), None), "error", "; ".join(told))

    def _put(self, event: str, step: str | None, severity: str, message: str, **more: Any) -> None:
        where = f" {step}" if step else ""
        self._queue.put(
            {
                "event": event,
                "run": self._run,
                "step": step,
                "severity": severity,
                "message": message,
                "text": f"ncp {self._run}{where}: {event}: {message}",
                "at": time.time(),
                **more,
            }
        )

    def _serve(self) -> None:
        while True:
            over = self._over.wait(0 if not self._queue.empty() else self._poll_seconds)
            self._collect_alerts()
            while not self._queue.empty():
                self._send(self._queue.get())
            if over:
                return

    def _collect_alerts(self) -> None:
        try:
            with patience(POLL_SECONDS, POLL_SECONDS):
                self._read_alerts()
        except Exception as error:  # a store that is away: seen again at the next look
            self._say(f"notify: alerts could not be read ({type(error).__name__}: {error})")

    def _read_alerts(self) -> None:
        for name, step in self._trained.items():
            for key in alert_keys(self._storage, step):
                if key not in self._seen:
                    self._tell_alert(name, key)
                    self._seen.add(key)

    def _tell_alert(self, step: str, key: str) -> None:
        try:
            with reading(self._storage.uri(key)):
                alert = read_alert(self._storage, key)
        except DamagedRecord as error:
            self._put("alert", step, "error", f"unreadable: {error}")
            return
        self._put("alert", step, alert.severity, f"{alert.kind}: {alert.message}", optimizer_step=alert.step)

    def _send(self, payload: Mapping[str, Any]) -> None:
        for name, send in (("url", self._post), ("command", self._call)):
            try:
                send(payload)
            except Exception as error:  # whatever a webhook or a command does, the run goes on
                self._say(
                    f"notify: runtime.notify.{name} failed for {payload['event']} ({_without_url(error)})"
                )

    def _post(self, payload: Mapping[str, Any]) -> None:
        if not self._url:
            return
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise ValueError("the URL is neither http nor https")
        request = urllib.request.Request(
            self._url,
            data=json.dumps(payload).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "ncp"},
        )
        with urllib.request.urlopen(request, timeout=SEND_SECONDS):
            pass

    def _call(self, payload: Mapping[str, Any]) -> None:
        if not self._command:
            return
        told = {"NCP_EVENT": payload["event"], "NCP_RUN": payload["run"], "NCP_TEXT": payload["text"]}
        subprocess.run(
            self._command,
            input=json.dumps(payload).encode(),
            env={**os.environ, **told},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SEND_SECONDS,
            check=True,
        )


def _without_url(error: Exception) -> str:
    """The error without what may hold a secret: the URL, and a command's arguments."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit status {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no end after {SEND_SECONDS:g} s"
    return f"{type(error).__name__}: {error}"
