"""What a reader of a run must not miss: failures, silence, and the alerts that training wrote (`jobs.runs.alerts`).

An attempt's error is a warning once the step goes on or is done: somebody should know, but nothing stands still.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.recorded import reading
from jobs.runs.status import StepStatus
from pipeline.dag.store import StepStore
from pipeline.quantities import duration
from pipeline.records import DamagedRecord
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
    if step.state == "unreadable":
        return [*alerts, _unreadable(step, step.detail)]
    try:
        with reading(f"failures of {step.name}"):
            return alerts + _of_attempts(storage, step)
    except DamagedRecord as error:
        return [*alerts, _unreadable(step, str(error))]


def _unreadable(step: StepStatus, reason: str) -> RunAlert:
    return RunAlert(severity="error", kind="unreadable", message=reason, name=step.name)


def _of_attempts(storage: Storage, step: StepStatus) -> list[RunAlert]:
    """What is known of the step's last failure, and of its silence."""
    alerts = []
    failure = StepStore(storage, step.key).failure() if step.state in ("failed", "running") else None
    if failure is not None:
        again = step.state == "running"
        now = (
            "another follows" if step.attempt == failure["attempt"] else f"attempt {step.attempt} is running"
        )
        text = f"attempt {failure['attempt']} failed: {failure['error']}"
        alerts.append(
            RunAlert(
                severity="warning" if again else "error",
                kind="retried" if again else "failed",
                message=f"{text}; {now}" if again else text,
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
    keys, alerts = alert_keys(storage, step.key), []
    for key in keys[-NEWEST:]:
        try:
            with reading(storage.uri(key)):
                alert = read_alert(storage, key)
        except FileNotFoundError:
            continue
        except DamagedRecord as error:
            alerts.append(_unreadable(step, str(error)))
            continue
        alerts.append(
            RunAlert(
                severity="warning" if step.state in ("done", "running") else alert.severity,
                kind=alert.kind,
                message=alert.message,
                name=step.name,
                step=alert.step,
                at=alert.at,
            )
        )
    if len(keys) > NEWEST:
        message = f"{len(keys) - NEWEST:,} earlier alerts are in {storage.uri(step.key)}/alerts"
        alerts.append(RunAlert(severity="info", kind="more", message=message, name=step.name))
    return alerts
