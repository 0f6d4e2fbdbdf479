"""What a run is doing, read from storage alone: the same view for `ncp status`, the live line and the report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jobs.runs.record import UnreadableRun, read_run
from jobs.runs.recorded import reading
from pipeline.dag.store import StepStore
from pipeline.data.accounts import account_line
from pipeline.quantities import duration
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

RETRY_GRACE_SECONDS = 120.0
"""How long after its announced time the next attempt is still believed in: it may have to wait for its place."""
QUIET_SECONDS = 300.0
"""After so long without progress the speed and the end that were last told are no longer shown."""
SKEW_SECONDS = 5.0
"""A time that lies so far ahead of this machine's clock was taken from a clock that goes otherwise."""
REMOTE_READERS = 16
"""Steps that are looked up at once where every look is a round trip."""


@dataclass(frozen=True, kw_only=True)
class StepStatus:
    """One step of a run, now."""

    name: str
    kind: str
    key: str
    milestone: int | None
    needs: tuple[str, ...]
    """Steps whose output it reads."""
    state: str
    """`done`, `running`, `failed`, `stopped` (an attempt ended without finishing), `waiting` or `unreadable`."""
    detail: str
    progress: Mapping[str, Any] | None
    attempt: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run, now. `state` is `done`, `running`, `failed`, `stopped`, or `unreadable`: then `problem` says why."""

    run: str
    recipe: str
    state: str
    created: float | None
    """Seconds since the epoch; None where the record does not say."""
    steps: tuple[StepStatus, ...]
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "run": self.run,
            "recipe": self.recipe,
            "state": self.state,
            "created": self.created,
            "problem": self.problem,
            "steps": [
                {**step.__dict__, "progress": dict(step.progress) if step.progress else None}
                for step in self.steps
            ],
        }


def run_status(storage: Storage, run: str) -> RunStatus:
    """The state of `run`. Raises UnknownRun for a run that does not exist, DamagedRecord for a record that cannot be read."""
    return recorded_status(storage, read_run(storage, run), run)


def unreadable_status(found: UnreadableRun) -> RunStatus:
    """What a list of runs says of one whose record cannot be read."""
    return RunStatus(
        run=found.run, recipe="?", state="unreadable", created=None, steps=(), problem=found.reason
    )


def recorded_status(storage: Storage, record: Mapping[str, Any], run: str) -> RunStatus:
    """The state of a run whose record was read."""
    if storage.local:
        steps = tuple(step_status(storage, step) for step in record["steps"])
    else:  # some five round trips a step: side by side, or a long DAG takes seconds
        with ThreadPoolExecutor(REMOTE_READERS) as pool:
            steps = tuple(pool.map(lambda step: step_status(storage, step), record["steps"]))
    states = {step.state for step in steps}
    if states == {"done"}:
        state = "done"
    elif "running" in states:
        state = "running"
    elif "failed" in states:
        state = "failed"
    elif "unreadable" in states:
        state = "unreadable"
    else:
        state = "stopped"
    return RunStatus(
        run=run, recipe=record["recipe"]["recipe"], state=state, created=record["created"], steps=steps
    )


def step_status(storage: Storage, record: Mapping[str, Any]) -> StepStatus:
    """The state of one step of a run's record; `unreadable` when what it left in storage cannot be read."""
    store = StepStore(storage, record["key"])
    progress: Mapping[str, Any] | None = None
    try:
        with reading(storage.uri(record["key"])):
            progress = store.progress()
            state, detail, attempt, seconds = _state(store, record["milestone"], progress)
            if (
                state == "running" and progress is not None
            ):  # what an attempt that is over said is not true now
                progress = aged(progress) if progress["attempt"] == attempt else None
    except DamagedRecord as error:
        state, detail, attempt, seconds = "unreadable", str(error), None, None
    return StepStatus(
        name=record["name"],
        kind=record["kind"],
        key=record["key"],
        milestone=record["milestone"],
        needs=tuple(record.get("needs", ())),
        state=state,
        detail=detail,
        progress=progress,
        attempt=attempt,
        seconds=seconds,
    )


def aged(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Progress as it is now: without speed and end once it has stood still for QUIET_SECONDS."""
    if time.time() - progress["at"] < QUIET_SECONDS:
        return progress
    return {name: value for name, value in progress.items() if name not in ("rate", "eta_seconds")}


def progress_text(progress: Mapping[str, Any]) -> str:
    """`819,200/1,228,800 tokens  67 %  loss 4.213  8,912 tokens/s  ETA 0:46`."""
    done, total, unit = progress.get("done"), progress.get("total"), progress.get("unit", "")
    parts = []
    if done is not None and total:
        parts.append(f"{done:,}/{total:,} {unit}  {100 * done / total:3.0f} %")
    elif done is not None:
        parts.append(f"{done:,} {unit}")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.3f}")
    if progress.get("rate"):
        parts.append(f"{progress['rate']:,.0f} {unit}/s")
    if progress.get("eta_seconds") is not None and done != total:
        parts.append(f"ETA {duration(progress['eta_seconds'])}")
    if progress.get("phase"):
        parts.append(str(progress["phase"]))
    return "  ".join(parts)


def sign_of_life(at: float) -> str:
    """`last sign of life 5 s ago`, or that the clocks differ when that would lie in the future."""
    ago = time.time() - at
    if ago < -SKEW_SECONDS:
        return f"its clock is {duration(-ago)} ahead of this machine's, so its last sign of life is not known"
    return f"last sign of life {max(ago, 0.0):.0f} s ago"


def _state(
    store: StepStore, milestone: int | None, progress: Mapping[str, Any] | None
) -> tuple[str, str, int | None, float | None]:
    receipt = store.receipt() if milestone is None else None
    if receipt is not None:
        return "done", account_line(receipt), receipt["attempt"], receipt["seconds"]
    marker = store.milestone(milestone) if milestone is not None else None
    if marker is not None:
        return "done", f"milestone at step {milestone}", marker["attempt"], _milestone_seconds(store, marker)
    attempt = progress["attempt"] if progress else None
    held = store.held()
    if held is not None:
        if progress is None or attempt != held.number:  # what an attempt before said is not true of this one
            newest = store.newest_milestone(milestone) if milestone is not None else None
            return (
                "running",
                f"starting{f' from step {newest}' if newest else ''} ({held})",
                held.number,
                None,
            )
        return (
            "running",
            f"{progress_text(aged(progress))} ({held}, {sign_of_life(progress['at'])})",
            attempt,
            None,
        )
    failure = store.failure()
    if failure is not None and _is_retried(failure):
        return (
            "running",
            f"attempt {failure['attempt']} failed, another follows: {failure['error']}",
            failure["attempt"],
            None,
        )
    if failure is not None:
        return "failed", f"attempt {failure['attempt']}: {failure['error']}", failure["attempt"], None
    newest = store.newest_milestone(milestone) if milestone is not None else None
    if progress is not None or newest is not None:
        detail = f"resumable at step {newest}" if newest else "no holder; the next run continues it"
        return "stopped", detail, attempt, None
    return "waiting", "", None, None


def _is_retried(failure: Mapping[str, Any]) -> bool:
    """Whether the runner that recorded the failure has announced another attempt and may still start it."""
    pause = failure.get("again_in")
    if pause is None:
        return False
    since = time.time() - failure["at"]
    return -SKEW_SECONDS <= since < pause + RETRY_GRACE_SECONDS


def _milestone_seconds(store: StepStore, marker: Mapping[str, Any]) -> float | None:
    """From the start of the attempt that reached the milestone until it was complete; None when either is not known."""
    key = f"{store.key}/lease/{marker['attempt']:06d}.json"
    if "at" not in marker or not store.storage.exists(key):
        return None
    return max(0.0, marker["at"] - store.storage.read_json(key)["at"])
