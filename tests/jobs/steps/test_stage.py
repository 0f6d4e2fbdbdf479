"""The `stage` step: how long an attempt that was told to stop may take."""

from __future__ import annotations

import time

import pytest

from curriculum.schema import RuntimeSpec
from jobs.steps import stage
from jobs.training.elastic import Growth


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_making_way_for_more_workers_has_all_the_time_it_needs_until_a_person_wants_the_end(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(stage, "signalled", lambda: bool(told))
    growth = Growth(RuntimeSpec(num_workers=(1, 2)), 1)
    growth.wanted = 2
    grace = stage._Grace(growth)
    assert grace.left()
    clock[0] = 10_000.0
    assert grace.left()
    told.append(True)
    assert grace.left()
    clock[0] += stage.STOP_GRACE_SECONDS - 1
    assert grace.left()
    clock[0] += 2
    assert not grace.left()


def test_a_stop_that_is_no_growth_is_waited_for_a_minute(clock: list[float]) -> None:
    grace = stage._Grace(Growth(RuntimeSpec(), 2))
    assert grace.left()
    clock[0] = stage.STOP_GRACE_SECONDS + 1
    assert not grace.left()
