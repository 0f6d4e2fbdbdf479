"""Metrics: immutable segments, the newest attempt wins for each step, and nothing before a milestone is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jobs.runs.metric_log import MetricRow, MetricWriter, read_metrics
from pipeline.storage import Storage


def _row(step: int, value: float) -> MetricRow:
    return MetricRow(step=step, values={"ntp": value}, timing={"seconds": 0.1})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_rows_appear_when_their_segment_is_closed(storage: Storage) -> None:
    writer = MetricWriter(storage, "s", 1)
    writer.add(_row(1, 0.5))
    assert read_metrics(storage, "s") == []
    writer.close_segment()
    assert read_metrics(storage, "s") == [_row(1, 0.5)]


def test_a_later_attempt_replaces_the_steps_it_took_again(storage: Storage) -> None:
    for attempt, steps in ((1, (1, 2, 3, 4)), (2, (3, 4, 5))):
        writer = MetricWriter(storage, "s", attempt)
        for step in steps:
            writer.add(_row(step, attempt))
        writer.close_segment()
    assert [(row.step, row.values["ntp"]) for row in read_metrics(storage, "s")] == [
        (1, 1), (2, 1), (3, 2), (4, 2), (5, 2),
    ]  # fmt: skip


def test_a_restart_within_an_attempt_counts_as_later(storage: Storage) -> None:
    for value in (1.0, 2.0):
        writer = MetricWriter(storage, "s", 7)
        writer.add(_row(1, value))
        writer.close_segment()
    assert read_metrics(storage, "s") == [_row(1, 2.0)]


def test_until_leaves_out_what_lies_beyond_a_stop(storage: Storage) -> None:
    writer = MetricWriter(storage, "s", 1)
    for step in range(1, 6):
        writer.add(_row(step, 0))
    writer.close_segment()
    assert [row.step for row in read_metrics(storage, "s", until=3)] == [1, 2, 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_resuming_any_number_of_times_leaves_one_row_a_step(resume_points: list[int]) -> None:
    """Each attempt starts at some step that the ones before have reached, as a resume from a milestone does."""
    storage = Storage(f"memory://metrics-{'-'.join(map(str, resume_points))}")
    storage.delete_tree("s")
    reached = 0
    for attempt, point in enumerate(resume_points, start=1):
        writer = MetricWriter(storage, "s", attempt)
        first = min(point, reached + 1)
        for step in range(first, first + 5):
            writer.add(_row(step, attempt))
        writer.close_segment()
        reached = max(reached, first + 4)
    assert [row.step for row in read_metrics(storage, "s")] == list(range(1, reached + 1))


def test_what_json_cannot_say_is_null_with_a_word_and_scalars_are_numbers(storage: Storage) -> None:
    writer = MetricWriter(storage, "steps/scalars", attempt=1)
    values = {
        "ntp": float("nan"),
        "up": float("inf"),
        "down": np.float32("-inf"),
        "half": np.float32(0.5),
        "count": np.int64(7),
        "yes": np.bool_(True),
        "torch": torch.tensor(0.25),
        "one": torch.tensor([3]),
        "many": torch.zeros(2),
        "none": None,
        "text": "ff",
    }
    writer.add(MetricRow(step=1, values=values, timing={"seconds": float("nan")}))
    writer.add(MetricRow(step=2, values={"ntp": 1.0}, timing={}))
    writer.close_segment()
    (key,) = (key for key in storage.keys("steps/scalars/metrics") if key.endswith(".jsonl"))
    for line in storage.read_bytes(key).splitlines():
        json.loads(line, parse_constant=pytest.fail)
    first, second = read_metrics(storage, "steps/scalars")
    assert first.values == {
        **dict.fromkeys(("ntp", "up", "down", "many", "none")),
        "half": 0.5,
        "count": 7,
        "yes": True,
        "torch": 0.25,
        "one": 3,
        "text": "ff",
        "not_finite": {"ntp": "nan", "up": "inf", "down": "-inf", "many": "Tensor"},
    }
    assert first.timing == {"seconds": None, "not_finite": {"seconds": "nan"}}
    assert second.values == {"ntp": 1.0}
