"""Asking a run to stop, through storage: from a signal, or from `ncp stop` on any machine.

A training attempt that is asked finishes its step, writes a milestone and ends; other steps end at their next
boundary. Asking costs no retry and loses no step.

A submission that still waits for its cluster is stopped by name, so that it ends as soon as it starts: starting a run
withdraws an earlier request, and this one must outlive that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

from jobs.runs.record import read_run
from pipeline.claim import claim_number
from pipeline.dag.runner import Stopped
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

_SIGNALLED = threading.Event()
SUBMISSION_VARIABLE = "NCP_SUBMISSION"
"""In the environment of a submitted run: the number of its submission."""


class StoppedByRequest(Stopped):
    """The run was stopped by `ncp stop`, and not by a signal to its process."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGINT and SIGTERM are noted in the block, for `signalled` to tell. Entered after Ray, which has handlers too.

    A handler that raised would do so anywhere, in the middle of Ray's C code too; whoever waits asks instead.
    """
    previous = {number: signal.signal(number, _note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _SIGNALLED.clear()


def signalled() -> bool:
    """Whether this process was told to stop."""
    return _SIGNALLED.is_set()


def _note(_number: int, _frame: FrameType | None) -> None:
    _SIGNALLED.set()


def request_attempt_stop(storage: Storage, step_key: str, attempt: int) -> None:
    """Ask one attempt at a step to end at its next boundary."""
    storage.write_json(_attempt_key(step_key, attempt), {"at": time.time()})


def request_preemption(storage: Storage, step_key: str, attempt: int, reason: str) -> None:
    """As `request_attempt_stop`, because the machine is taken away; a stop or a failure that came before stands."""
    storage.create_json(_attempt_key(step_key, attempt), {"at": time.time(), "preempted": reason})


def mark_attempt_failed(storage: Storage, step_key: str, attempt: int) -> None:
    """Say that a worker of the attempt ends by an error of its own, which makes a later `request_preemption` void: when one
    worker fails, Ray ends the others by the same SIGTERM that announces a preemption."""
    storage.create_json(_attempt_key(step_key, attempt), {"at": time.time(), "failed": True})


def preemption_reason(storage: Storage, step_key: str, attempt: int) -> str | None:
    """Why the attempt was told to stop, if that was a preemption, no person asked and no worker had failed before."""
    key = _attempt_key(step_key, attempt)
    return storage.read_json(key).get("preempted") if storage.exists(key) else None


def attempt_stop_requested(storage: Storage, step_key: str, attempt: int) -> bool:
    return storage.exists(_attempt_key(step_key, attempt))


def request_run_stop(storage: Storage, run: str) -> list[str]:
    """Ask a run to stop; returns the steps that were running for it. Raises RecipeError for an unknown run."""
    record = read_run(storage, run)
    running = []
    storage.write_json(_run_key(run), {"at": time.time()})
    for number in submissions(storage, run):
        storage.write_json(_submission_key(run, number, "stop"), {"at": time.time()})
    for step in record["steps"]:
        held = StepStore(storage, step["key"]).held()
        if held is not None and held.run == run:
            request_attempt_stop(storage, step["key"], held.number)
            running.append(step["name"])
    return running


def run_stop_requested(storage: Storage, run: str) -> bool:
    return storage.exists(_run_key(run))


def withdraw_run_stop(storage: Storage, run: str) -> None:
    """Starting a run again withdraws an earlier request."""
    storage.delete(_run_key(run))


def claim_submission(storage: Storage, run: str, record: dict[str, Any]) -> int:
    """The next submission's number, which nobody else gets; `record` is kept with it."""
    first = max(submissions(storage, run), default=0) + 1
    key = partial(_submission_key, run)
    return claim_number(storage, key, {**record, "at": time.time()}, first=first)


def submissions(storage: Storage, run: str) -> list[int]:
    """Numbers of the run's submissions, ascending."""
    names = storage.children(f"runs/{run}/submissions")
    return [int(name[:6]) for name in names if name[6:] == ".json"]


def check_submission(storage: Storage, run: str) -> None:
    """Raise StoppedByRequest when this process is a submission that was stopped before it started."""
    number = os.environ.get(SUBMISSION_VARIABLE, "")
    if number.isdigit() and storage.exists(_submission_key(run, int(number), "stop")):
        raise StoppedByRequest(f"submission {number} of {run} was stopped before it started")


def _submission_key(run: str, number: int, suffix: str = "") -> str:
    return f"runs/{run}/submissions/{number:06d}{'.' + suffix if suffix else ''}.json"


def _run_key(run: str) -> str:
    return f"runs/{run}/stop.json"


def _attempt_key(step_key: str, attempt: int) -> str:
    return f"{step_key}/stop/{attempt:06d}.json"
