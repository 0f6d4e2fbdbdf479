"""Alerts: which rows become one, once, and that they are immutable rows beside the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.runs.alerts import DEAD_ROWS, Alert, AlertWatch, alert_keys, read_alert, write_alert
from jobs.runs.metric_log import MetricRow
from pipeline.storage import Storage

KEY = "steps/stage1-0"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _watch(storage: Storage, attempt: int = 1) -> AlertWatch:
    return AlertWatch(storage, KEY, attempt, "run", codebook_entries=16, dead_codebook_share=0.5)


def _row(step: int, loss: float = 3.0, *, skipped: int = 0, dead: float = 0.0) -> MetricRow:
    wave = 0.01 * (step % 5)
    values = {"ntp": loss + wave, "grad_norm": 1.0, "skipped": skipped, "codebook_dead": dead}
    return MetricRow(step=step, values=values, timing={})


def _alerts(storage: Storage) -> list[Alert]:
    return [read_alert(storage, key) for key in alert_keys(storage, KEY)]


def test_a_calm_training_has_none(storage: Storage) -> None:
    watch = _watch(storage)
    for step in range(1, 200):
        watch.observe(_row(step))
    assert _alerts(storage) == []


def test_a_spike_is_told_once_until_it_is_over(storage: Storage) -> None:
    watch = _watch(storage)
    for step in range(1, 100):
        watch.observe(_row(step))
    watch.observe(_row(100, 9.0))
    watch.observe(_row(101, 9.0))
    (alert,) = _alerts(storage)
    assert (alert.kind, alert.severity, alert.step, alert.attempt, alert.run) == (
        "loss_spike",
        "warning",
        100,
        1,
        "run",
    )


def test_a_skipped_step_is_told_with_its_loss_and_norm(storage: Storage) -> None:
    _watch(storage).observe(_row(7, 8.0, skipped=1))
    (alert,) = _alerts(storage)
    assert alert.kind == "skipped_step" and "loss 8.02, gradient norm 1" in alert.message


def test_dead_codewords_are_told_when_they_stay_dead(storage: Storage) -> None:
    watch = _watch(storage)
    for step in range(1, DEAD_ROWS):
        watch.observe(_row(step, dead=15))
    watch.observe(_row(DEAD_ROWS, dead=8))  # half is not more than half
    assert _alerts(storage) == []
    for step in range(100, 100 + 3 * DEAD_ROWS):
        watch.observe(_row(step, dead=15))
    (alert,) = _alerts(storage)
    assert alert.kind == "dead_codebook" and "94% of the codewords" in alert.message


def test_alerts_come_in_the_order_of_attempts_and_steps_and_are_never_rewritten(storage: Storage) -> None:
    for attempt, step in ((2, 5), (1, 90), (1, 7)):
        _watch(storage, attempt).warn("loss_spike", "first words", step)
    _watch(storage, 1).warn("loss_spike", "other words", 7)
    assert [(alert.attempt, alert.step, alert.message) for alert in _alerts(storage)] == [
        (1, 7, "first words"),
        (1, 90, "first words"),
        (2, 5, "first words"),
    ]


def test_storage_that_fails_does_not_hurt_the_training(storage: Storage) -> None:
    storage.write_bytes(f"{KEY}/alerts", b"a file where the folder should be")
    alert = Alert(kind="stall", severity="error", message="m", step=None, attempt=1, run="r")
    write_alert(storage, KEY, alert)
