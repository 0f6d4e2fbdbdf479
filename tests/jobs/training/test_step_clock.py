"""The timing columns add up: a step's time without its checkpoints, shares of it, MFU only where the peak is known."""

from __future__ import annotations

import time

import pytest

from jobs.training.step_clock import StepClock


def _read(monkeypatch: pytest.MonkeyPatch, *, steps: int, seconds: float, stalled: float, peak: float = 0.0):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = StepClock(tokens_per_step=1000, flops_per_token=6.0, peak_flops=peak)
    for _ in range(steps):
        clock.step_taken()
    clock.stalled(stalled)
    now[0] += seconds
    return clock.read(waited=0.5)


def test_checkpoints_are_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = _read(monkeypatch, steps=5, seconds=12.0, stalled=2.0)
    assert timing == pytest.approx(
        {
            "seconds": 2.0,
            "tokens_per_second": 500.0,
            "data_wait": 0.1,
            "data_wait_share": 0.05,
            "checkpoint_stall": 2.0,
            "checkpoint_share": 2 / 12,
        }
    )


def test_the_share_of_the_peak_is_told_where_the_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _read(monkeypatch, steps=1, seconds=2.0, stalled=0.0, peak=6000.0)["mfu"] == pytest.approx(0.5)
