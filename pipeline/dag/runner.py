"""Run a DAG to its end: cache check, lease, execute, publish - independent steps side by side.

The runner is a light driver: it holds no data and no state that matters. Killing it at any point loses nothing that
was published, and running it again resumes. It knows steps, leases and receipts; what a step *does* is an executor,
a plain function from `StepContext` to the receipt's contents, which mostly waits for a cluster. So executors run in
threads, at most `parallel` of them, and only as many as their `resources` fit into `capacity` together.

Storage that is away is waited for by every call (pipeline.answers), so an outage shorter than the patience spends no
retry: no failure of a step is seen at all. A longer one is an infrastructure failure like another.

A failure is recorded in storage with its class, and tried again from that class's budget (pipeline.dag.retry). A step
that waits - for another run that computes it, for its next attempt - leaves its thread and resources to the others.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from pipeline.answers import patience
from pipeline.dag.attempt import Blocked, Executor, Preempted, Refused, StepContext, Stopped, Undone, attempt
from pipeline.dag.lease import Held, Lease, LeaseBook, Sealed, Superseded
from pipeline.dag.retry import INFRASTRUCTURE, PREEMPTION, USER, RetryBudget, RetryPolicy
from pipeline.dag.schedule import Schedule
from pipeline.dag.step import Step, check_graph
from pipeline.dag.store import step_store
from pipeline.redaction import redact
from pipeline.storage import Storage

__all__ = [
    "Blocked",
    "Event",
    "Executor",
    "Failure",
    "Outcome",
    "Preempted",
    "Refused",
    "RetryPolicy",
    "StepContext",
    "Stopped",
    "Undone",
    "one_line",
    "run_steps",
]

WATCH_SECONDS = 5.0
"""How long what is beside the work waits for storage: a stop request, the record of a failure."""
WAIT_SECONDS = 1.0
"""Between two looks at a step that someone else holds."""


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
    retry: RetryPolicy | None = None,
    parallel: int = 1,
    capacity: Mapping[str, float] | None = None,
    wanted: Collection[str] | None = None,
    retry_failed: bool = True,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Bring every step to completion, or those in `wanted` (which then take all others as they are). A failed step blocks those that need it; the others still run.

    `parallel` bounds the steps that run at the same time, `capacity` what their `resources` add up to (a step that is
    too large for it runs alone). Events come one at a time, each step's in order. With `retry_failed` off, a step whose
    newest attempt failed for bad input stays failed, so that a loop of automatic submissions does not spin on it.

    `stop_requested` is asked before every attempt; then, or when an executor raises Stopped, nothing more is started,
    and Stopped is raised once the steps under way have ended.
    """
    check_graph(steps)
    if parallel < 1:
        raise ValueError(f"parallel: {parallel} is not positive; use 1 or more")
    chosen = [
        step
        if wanted is None
        else replace(
            step,
            needs=tuple(name for name in step.needs if name in wanted),
            after=tuple(name for name in step.after if name in wanted),
        )
        for step in steps
        if wanted is None or step.name in wanted
    ]
    return _Run(
        steps=chosen,
        by_name={step.name: step for step in steps},
        storage=storage,
        executors=executors,
        run=run,
        on_event=on_event,
        retry=retry or RetryPolicy(),
        parallel=parallel,
        schedule=Schedule(chosen, capacity or {}),
        retry_failed=retry_failed,
        stop_requested=stop_requested,
    ).execute()


@dataclass(frozen=True, kw_only=True)
class _Wait:
    """The step is not over; look again after `seconds`."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Reopen:
    """The step is not over, and goes on once the step of this name was done again."""

    name: str
    reason: str


class _Progress:
    """What one step's attempts have to remember between them."""

    def __init__(self, storage: Storage, step: Step, policy: RetryPolicy):
        self.book = LeaseBook(storage, step.key)
        self.budget = RetryBudget(policy)
        self.announced: str | None = None
        self.newest_milestone = -1


@dataclass(kw_only=True)
class _Run:
    """One call of `run_steps`: the loop in the caller's thread, and what it hands to the others."""

    steps: Sequence[Step]
    by_name: Mapping[str, Step]
    storage: Storage
    executors: Mapping[str, Executor]
    run: str
    on_event: Callable[[Event], None]
    retry: RetryPolicy
    parallel: int
    schedule: Schedule
    retry_failed: bool
    stop_requested: Callable[[], bool]
    _under_way: dict[Future[Failure | _Wait | _Reopen | None], Step] = field(default_factory=dict)
    _put_off: list[tuple[float, int, Step]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    _progress: dict[str, _Progress] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _reopened: dict[str, list[Step]] = field(default_factory=dict)
    """Steps that are done again, each with those that found it undone and wait for it."""
    _failed: dict[str, Failure] = field(default_factory=dict)
    _blocked: dict[str, str] = field(default_factory=dict)
    _events: threading.Lock = field(default_factory=threading.Lock)

    def execute(self) -> Outcome:
        ending: BaseException | None = None
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="step") as pool:
            while True:
                if ending is None:
                    ending = self._start(pool)
                if ending is not None:
                    self._put_off.clear()
                if not self._under_way and (ending is not None or not self._put_off):
                    break
                try:
                    self._collect()
                except BaseException as error:
                    # A crash goes before a stop; the first of each kind is the one that is told.
                    if ending is None or (isinstance(ending, Stopped) and not isinstance(error, Stopped)):
                        ending = error
        if ending is not None:
            raise ending
        in_order = {step.name: index for index, step in enumerate(self.steps)}
        return Outcome(
            done=tuple(sorted(self._done, key=in_order.__getitem__)),
            failed={name: self._failed[name] for name in sorted(self._failed, key=in_order.__getitem__)},
            blocked={name: self._blocked[name] for name in sorted(self._blocked, key=in_order.__getitem__)},
        )

    def _start(self, pool: ThreadPoolExecutor) -> Stopped | None:
        """Start what may start now; Stopped when the run was asked to stop."""
        while self._put_off and self._put_off[0][0] <= time.monotonic():
            self.schedule.resume(heapq.heappop(self._put_off)[2])
        while len(self._under_way) < self.parallel:
            if self._asked_to_stop():
                return Stopped("stopped on request")
            step = self.schedule.start_next()
            if step is None:
                return None
            self._under_way[pool.submit(self._visit, step)] = step
        return None

    def _collect(self) -> None:
        """Wait until a step under way is over or one that was put off is due."""
        due = self._put_off[0][0] - time.monotonic() if self._put_off else WAIT_SECONDS
        if not self._under_way:
            time.sleep(max(0.0, min(due, WAIT_SECONDS)))
            return
        finished, _ = wait(
            self._under_way, timeout=max(0.0, min(due, WAIT_SECONDS)), return_when=FIRST_COMPLETED
        )
        errors: list[BaseException] = []
        for future in finished:
            step = self._under_way.pop(future)
            error = future.exception()
            if error is not None:
                errors.append(error)
            else:
                self._settle(step, future.result())
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            raise error

    def _settle(self, step: Step, result: Failure | _Wait | _Reopen | None) -> None:
        if isinstance(result, _Reopen):
            if self._reopen(step, result.name):
                return
            result = self._failed.get(result.name) or Failure(
                message=f"{result.reason}; give `ncp run` without --only", user=True
            )
        if isinstance(result, _Wait):
            self.schedule.put_off(step)
            heapq.heappush(self._put_off, (time.monotonic() + result.seconds, next(self._order), step))
            return
        if step.name in self._reopened:
            waiting = self._reopened.pop(step.name)
            self.schedule.put_off(step)
            for other in waiting:
                self.schedule.resume(other)
            if result is not None:  # those that wait for it find it undone again, and fail with it
                self._done.discard(step.name)
                self._failed[step.name] = result
            return
        if result is None:
            self._done.add(step.name)
        else:
            self._failed[step.name] = result
        for other, culprit in self.schedule.finish(step, failed=result is not None):
            self._blocked[other.name] = culprit
            self._say(Event(kind="blocked", step=other, detail=f"hangs on {culprit}, which failed"))

    def _reopen(self, step: Step, name: str) -> bool:
        """Put `step` off until the step `name`, which was done, is done again. False if this run does not compute that one."""
        if name not in self._done and name not in self._reopened:
            return False
        self.schedule.put_off(step)
        if name not in self._reopened:
            self._reopened[name] = []
            self.schedule.resume(self.by_name[name])
        self._reopened[name].append(step)
        return True

    def _asked_to_stop(self) -> bool:
        # Storage that does not answer now is asked again before the next step.
        with contextlib.suppress(Exception), patience(WATCH_SECONDS, WATCH_SECONDS):
            return self.stop_requested()
        return False

    def _say(self, event: Event) -> None:
        with self._events, contextlib.suppress(Exception):  # who only watches ends nothing
            self.on_event(event)

    # --- in a thread of the step's own ---------------------------------------------------------------------

    def _visit(self, step: Step) -> Failure | _Wait | _Reopen | None:
        """One look at a step, and one attempt if it is free: None when it is done."""
        progress = self._progress.get(step.name)
        if progress is None:
            progress = self._progress[step.name] = _Progress(self.storage, step, self.retry)
        number = 0
        try:
            store = step_store(self.storage, step)
            if store.published(step):
                self._say(Event(kind="cached", step=step))
                return None
            if not self.retry_failed and (failure := store.failure()) and failure["class"] == USER:
                return self._give_up(step, failure["attempt"], f"failed before: {failure['error']}", USER)
            lease = progress.book.acquire(self.run)
            if isinstance(lease, Sealed):
                store.complete_receipt(lease.receipt)
                self._say(Event(kind="cached", step=step))
                return None
            if isinstance(lease, Held):
                return self._wait_for(step, progress, str(lease), WAIT_SECONDS)
            number = lease.number
            return self._attempt(step, lease)
        except Superseded as error:
            return self._wait_for(step, progress, str(error), 0.0)
        except Stopped:
            raise
        except Undone as error:
            self._say(Event(kind="waiting", step=step, detail=redact(str(error)), attempt=number))
            return _Reopen(name=error.step, reason=redact(str(error)))
        except (Refused, Blocked) as error:
            refused = isinstance(error, Refused)
            kind = "refused" if refused else "blocked"
            self._say(Event(kind=kind, step=step, detail=redact(str(error)), attempt=number))
            return Failure(message=redact(str(error)), refused=refused)
        except Exception as error:
            return self._after_failure(step, progress, number, error)

    def _attempt(self, step: Step, lease: Lease) -> None:
        self._say(Event(kind="started", step=step, attempt=lease.number))
        seconds = attempt(step, self.by_name, self.storage, lease, self.executors[step.kind], self.run)
        self._say(Event(kind="done", step=step, seconds=seconds, attempt=lease.number))

    def _wait_for(self, step: Step, progress: _Progress, whom: str, seconds: float) -> _Wait:
        if progress.announced != whom:
            progress.announced = whom
            self._say(Event(kind="waiting", step=step, detail=whom))
        return _Wait(seconds=seconds)

    def _after_failure(
        self, step: Step, progress: _Progress, number: int, error: Exception
    ) -> Failure | _Wait:
        kind = _failure_class(error)
        message = redact(one_line(error))
        pause = progress.budget.spend(kind, progressed=self._progressed(step, progress))
        if number:
            self._record_failure(step, number, kind, message, error, pause)
        if pause is None:
            return self._give_up(step, number, message, kind)
        left = progress.budget.left(kind)
        detail = f"{message} ({kind}; again in {pause:.1f} s, then {left} more)"
        self._say(Event(kind="retrying", step=step, detail=detail, attempt=number))
        return _Wait(seconds=pause)

    def _give_up(self, step: Step, number: int, message: str, kind: str) -> Failure:
        self._say(Event(kind="failed", step=step, detail=message, attempt=number))
        return Failure(message=message, user=kind == USER)

    def _record_failure(
        self, step: Step, number: int, kind: str, message: str, error: Exception, pause: float | None
    ) -> None:
        record = {
            "error": message,
            "class": kind,
            "traceback": redact("".join(traceback.format_exception(error))),
            "run": self.run,
            "again_in": pause,  # seconds; None: no further attempt by this run
        }
        # The storage may be what failed; the event tells it all the same.
        with contextlib.suppress(Exception), patience(WATCH_SECONDS, WATCH_SECONDS):
            step_store(self.storage, step).write_failure(number, record)

    def _progressed(self, step: Step, progress: _Progress) -> bool:
        """Whether the trajectory has a milestone that it did not have at the failure before."""
        if step.milestone is None:
            return False
        with contextlib.suppress(Exception), patience(WATCH_SECONDS, WATCH_SECONDS):
            newest = max(step_store(self.storage, step).milestones(), default=-1)
            before, progress.newest_milestone = progress.newest_milestone, newest
            return newest > before
        return False


def _failure_class(error: Exception) -> str:
    if isinstance(error, Preempted):
        return PREEMPTION
    return USER if isinstance(error, ValueError) else INFRASTRUCTURE


def one_line(error: BaseException) -> str:
    """The error for a status line: a ValueError's own words, otherwise with the type's name before them."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
