"""Run a DAG to its end: cache check, lease, execute, publish - one step after another, in order.

The runner is a light driver: it holds no data and no state that matters. Killing it at any point loses nothing that
was published, and running it again resumes. It knows steps, leases and receipts; what a step *does* is an executor,
a plain function from `StepContext` to the receipt's contents.

A failure is recorded in storage with its class. `user` errors (ValueError: a bad source, a bad value) are not retried;
anything else is `infrastructure` and is retried up to `retries` times with a new attempt each.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dag.lease import Held, Lease, LeaseBook, Sealed, Superseded
from pipeline.dag.step import Step, check_graph
from pipeline.dag.store import StepStore, step_store
from pipeline.storage import Storage

WAIT_SECONDS = 1.0


class Stopped(Exception):
    """The run was asked to stop. What is published stays, no failure is recorded, and running again resumes."""


class Refused(Exception):
    """An executor declines to start its step, by a rule and not by a fault. Nothing is retried or recorded as failed."""


class Blocked(Exception):
    """What the executor's rule asks for is not there to be judged. As Refused, but the run has failed, not been refused."""


class Preempted(RuntimeError):
    """The machine was taken away, or given up for another. A new attempt goes on, and it costs no retry."""


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What an executor is given."""

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

    def report_progress(self, **progress: Any) -> None:
        self.store.write_progress(self.attempt, progress)


Executor = Callable[[StepContext], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something a person may want to see. `kind`: started, done, cached, waiting, failed, refused, retrying, blocked."""

    kind: str
    step: Step
    detail: str = ""
    seconds: float = 0.0
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a step failed for good."""

    message: str
    """One line."""
    user: bool = False
    """Whether the input is at fault, so that trying again cannot help."""
    refused: bool = False
    """Whether the executor declined by a rule."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    done: tuple[str, ...]
    failed: Mapping[str, Failure]
    blocked: Mapping[str, str]
    """Step -> the failed step it hangs on."""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.blocked


def run_steps(
    steps: Sequence[Step],
    storage: Storage,
    executors: Mapping[str, Executor],
    *,
    run: str,
    on_event: Callable[[Event], None],
    retries: int = 2,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Bring every step to completion, in order. A failed step blocks those that need it; the others still run.

    `stop_requested` is asked before every attempt and while waiting; raises Stopped when it says so, or when an executor does.
    """
    check_graph(steps)
    by_name = {step.name: step for step in steps}
    done: list[str] = []
    failed: dict[str, Failure] = {}
    blocked: dict[str, str] = {}
    for step in steps:
        culprit = next((name for name in step.needs if name in failed or name in blocked), None)
        if culprit is not None:
            blocked[step.name] = blocked.get(culprit, culprit)
            on_event(Event(kind="blocked", step=step, detail=f"hangs on {blocked[step.name]}, which failed"))
            continue
        error = _complete(step, by_name, storage, executors, run, on_event, retries, stop_requested)
        if error is None:
            done.append(step.name)
        else:
            failed[step.name] = error
    return Outcome(done=tuple(done), failed=failed, blocked=blocked)


def _complete(
    step: Step,
    steps: Mapping[str, Step],
    storage: Storage,
    executors: Mapping[str, Executor],
    run: str,
    on_event: Callable[[Event], None],
    retries: int,
    stop_requested: Callable[[], bool],
) -> Failure | None:
    """One step, to completion or to its last failure, which is returned."""
    store = step_store(storage, step)
    book = LeaseBook(storage, step.key)
    announced: str | None = None
    failures = 0
    while True:
        if store.done(step):
            on_event(Event(kind="cached", step=step))
            return None
        if stop_requested():
            raise Stopped("stopped on request")
        lease = book.acquire(run)
        if isinstance(lease, Sealed):
            continue
        if isinstance(lease, Held):
            if announced != (announced := str(lease)):
                on_event(Event(kind="waiting", step=step, detail=announced))
            time.sleep(WAIT_SECONDS)
            continue
        try:
            _attempt(step, steps, storage, store, lease, executors[step.kind], run, on_event)
            return None
        except Superseded as error:
            on_event(Event(kind="waiting", step=step, detail=str(error)))
        except Stopped:
            raise
        except (Refused, Blocked) as error:
            refused = isinstance(error, Refused)
            kind = "refused" if refused else "blocked"
            on_event(Event(kind=kind, step=step, detail=str(error), attempt=lease.number))
            return Failure(message=str(error), refused=refused)
        except Preempted as error:
            on_event(Event(kind="retrying", step=step, detail=str(error), attempt=lease.number))
        except Exception as error:
            failures += 1
            message = one_line(error)
            retryable = not isinstance(error, ValueError)
            store.write_failure(
                lease.number,
                {
                    "error": message,
                    "class": "infrastructure" if retryable else "user",
                    "traceback": "".join(traceback.format_exception(error)),
                    "run": run,
                },
            )
            if not retryable or failures > retries:
                on_event(Event(kind="failed", step=step, detail=message, attempt=lease.number))
                return Failure(message=message, user=not retryable)
            on_event(Event(kind="retrying", step=step, detail=message, attempt=lease.number))


def _attempt(
    step: Step,
    steps: Mapping[str, Step],
    storage: Storage,
    store: StepStore,
    lease: Lease,
    executor: Executor,
    run: str,
    on_event: Callable[[Event], None],
) -> None:
    started = time.monotonic()
    with lease:
        on_event(Event(kind="started", step=step, attempt=lease.number))
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
        if step.milestone is None:
            lease.seal({"attempt": lease.number, "run": run, "seconds": time.monotonic() - started, **result})
            if store.receipt() is None:
                raise RuntimeError(f"step {step.name}: sealed, but the receipt cannot be read back")
        elif not store.done(step):
            raise RuntimeError(f"step {step.name}: ended without its milestone at step {step.milestone}")
    on_event(Event(kind="done", step=step, seconds=time.monotonic() - started, attempt=lease.number))


def one_line(error: BaseException) -> str:
    """The error for a status line: a ValueError's own words, otherwise with the type's name before them."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
