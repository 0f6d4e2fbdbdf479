"""One attempt at a step: what an executor is given, how it may end, and the order in which its result becomes true."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.dag.lease import Lease
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.dag.versions import versions
from pipeline.storage import Storage


class Stopped(Exception):
    """The run was asked to stop. What is published stays, no failure is recorded, and running again resumes."""


class Refused(Exception):
    """An executor declines to start its step, by a rule and not by a fault. Nothing is retried or recorded as failed."""


class Blocked(Exception):
    """What the executor's rule asks for is not there to be judged. As Refused, but the run has failed, not been refused."""


class Undone(Exception):
    """A step that this one needs turned out not to be done: its output is damaged and was set aside. It is done again first."""

    def __init__(self, step: str, reason: str):
        super().__init__(f"{step}: {reason}")
        self.step = step


class Preempted(RuntimeError):
    """The machine was taken away by whoever lent it. Tried again from a budget of its own (pipeline.dag.retry)."""


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What an executor is given. Executors of independent steps run at the same time, each in a thread."""

    step: Step
    steps: Mapping[str, Step]
    """All steps of the run by name, to find what this one is computed from."""
    storage: Storage
    store: StepStore
    attempt: int
    """The lease number. Data is written under keys that hold it, so that attempts never mix."""
    run: str
    is_current: Callable[[], bool]
    """False once another attempt has taken the step over: stop, and publish nothing."""

    def report_waiting(self, text: str) -> None:
        """What the attempt waits for, beside what it last said of itself."""
        last = self.store.progress() or {}
        kept = last if last.get("attempt") == self.attempt else {}
        self.store.write_progress(self.attempt, {**kept, "phase": text})


Executor = Callable[[StepContext], dict[str, Any]]


def attempt(
    step: Step, steps: Mapping[str, Step], storage: Storage, lease: Lease, executor: Executor, run: str
) -> float:
    """Execute the step under `lease` and publish its receipt; returns the seconds it took.

    Raises Superseded when another attempt took the step over, and whatever the executor raises.
    """
    started = time.monotonic()
    store = StepStore(storage, step.key)
    with lease:
        store.write_identity(step)
        context = StepContext(
            step=step,
            steps=steps,
            storage=storage,
            store=store,
            attempt=lease.number,
            run=run,
            is_current=lease.is_current,
        )
        result = executor(context)
        seconds = time.monotonic() - started
        if step.milestone is None:
            receipt = {
                "attempt": lease.number,
                "run": run,
                "seconds": seconds,
                "versions": dict(versions()),
                **result,
            }
            lease.seal(receipt)
            store.complete_receipt(receipt)
        elif not store.done(step):
            raise RuntimeError(f"step {step.name}: ended without its milestone at step {step.milestone}")
    return seconds
