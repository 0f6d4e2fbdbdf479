"""What a reader of a run must not miss: failures, silence, and the alerts that training wrote beside its step.

A step's alerts are JSON objects below `{step}/alerts/`: `{kind, message, step, at}`, where `step` is the optimizer step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.status import StepStatus, duration
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

NEWEST = 20
"""Alerts that are read of one step: a step that alerts all the time must not make a status slow."""
SILENT_SECONDS = 120.0
"""A running step that has reported nothing for so long is worth a warning. A hint only: it compares two clocks."""


@dataclass(frozen=True, kw_only=True)
class RunAlert:
    """One alert. `severity` is `error` (the run cannot go on), `warning` or `info`."""

    severity: str
    kind: str
    """`failed`, `retried`, `silent`, or what training called it: `loss_spike`, `slow_step`, ..."""
    message: str
    name: str
    """The step of the DAG."""
    step: int | None = None
    """The optimizer step, where there is one."""
    at: float | None = None
    """Seconds since the epoch, on the clock of whoever noticed."""


def run_alerts(storage: Storage, steps: Sequence[StepStatus]) -> tuple[RunAlert, ...]:
    """Alerts of a run's steps: errors first, then the newest first."""
    found = [alert for step in steps if step.state != "waiting" for alert in _step_alerts(storage, step)]
    order = {"error": 0, "warning": 1}
    found.sort(key=lambda alert: (order.get(alert.severity, 2), -(alert.at or 0.0)))
    return tuple(found)


def _step_alerts(storage: Storage, step: StepStatus) -> list[RunAlert]:
    alerts = _written(storage, step)
    failure = StepStore(storage, step.key).failure() if step.state in ("failed", "running") else None
    if failure is not None:
        again = step.state == "running"
        text = f"attempt {failure['attempt']} failed: {failure['error']}"
        alerts.append(
            RunAlert(
                severity="warning" if again else "error",
                kind="retried" if again else "failed",
                message=f"{text}; attempt {step.attempt} is running" if again else text,
                name=step.name,
                at=failure.get("at"),
            )
        )
    seen = step.progress.get("at") if step.progress and step.state == "running" else None
    silent = time.time() - seen if seen is not None else 0.0
    if silent > SILENT_SECONDS:
        message = f"no sign of life for {duration(silent)}; its holder may be gone, see: ncp logs"
        alerts.append(RunAlert(severity="warning", kind="silent", message=message, name=step.name, at=seen))
    return alerts


def _written(storage: Storage, step: StepStatus) -> list[RunAlert]:
    names = [name for name in storage.children(f"{step.key}/alerts") if name.endswith(".json")]
    alerts = []
    for name in names[-NEWEST:]:
        record = storage.read_json(f"{step.key}/alerts/{name}")
        alerts.append(
            RunAlert(
                severity=record.get("severity", "warning"),
                kind=str(record["kind"]),
                message=str(record["message"]),
                name=step.name,
                step=record.get("step"),
                at=record.get("at"),
            )
        )
    if len(names) > NEWEST:
        message = f"{len(names) - NEWEST:,} earlier alerts are in {storage.uri(step.key)}/alerts"
        alerts.append(RunAlert(severity="info", kind="more", message=message, name=step.name))
    return alerts
