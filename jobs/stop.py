"""Asking a run to stop, through storage: from a signal, or from `ncp stop` on any machine.

A training attempt that is asked finishes its step, writes a milestone and ends; other steps end at their next
boundary. Asking costs no retry and loses no step.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from jobs.runs import read_run
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

_SIGNALLED = threading.Event()


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
    """As `request_attempt_stop`, because the machine is taken away; a stop that was asked for before stands."""
    storage.create_json(_attempt_key(step_key, attempt), {"at": time.time(), "preempted": reason})


def preemption_reason(storage: Storage, step_key: str, attempt: int) -> str | None:
    """Why the attempt was told to stop, if that was a preemption and no person asked."""
    key = _attempt_key(step_key, attempt)
    return storage.read_json(key).get("preempted") if storage.exists(key) else None


def attempt_stop_requested(storage: Storage, step_key: str, attempt: int) -> bool:
    return storage.exists(_attempt_key(step_key, attempt))


def request_run_stop(storage: Storage, run: str) -> list[str]:
    """Ask a run to stop; returns the steps that were running for it. Raises RecipeError for an unknown run."""
    running = []
    storage.write_json(_run_key(run), {"at": time.time()})
    for step in read_run(storage, run)["steps"]:
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


def _run_key(run: str) -> str:
    return f"runs/{run}/stop.json"


def _attempt_key(step_key: str, attempt: int) -> str:
    return f"{step_key}/stop/{attempt:06d}.json"
