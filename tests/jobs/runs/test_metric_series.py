"""Tails and kept curves: the same rows as a full reading, at a cost that does not grow with the run."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runs.metric_log import MetricRow, MetricWriter, read_metrics, read_tail
from jobs.runs.metric_series import MetricSeries
from pipeline.storage import Storage
from tests.jobs.counting import CountingStorage

_NAMES = itertools.count()


def _row(step: int, value: float) -> MetricRow:
    return MetricRow(
        step=step, values={"ntp": value, "batch_digest": f"{step:x}"}, timing={"seconds": 0.5 + step}
    )


def _write(storage: Storage, attempt: int, steps: range, segment: int) -> None:
    writer = MetricWriter(storage, "s", attempt)
    for start in range(steps.start, steps.stop, segment):
        for step in range(start, min(start + segment, steps.stop)):
            writer.add(_row(step, attempt + step / 1000))
        writer.close_segment()


def test_a_tail_goes_back_over_segments_and_attempts(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    assert read_tail(storage, "s") == []
    _write(storage, 1, range(1, 9), 2)
    _write(storage, 2, range(7, 10), 2)
    assert [(row.step, int(row.values["ntp"])) for row in read_tail(storage, "s", rows=5)] == [
        (5, 1), (6, 1), (7, 2), (8, 2), (9, 2),
    ]  # fmt: skip
    assert [row.step for row in read_tail(storage, "s", rows=1)] == [9]
    assert len(read_tail(storage, "s", rows=100)) == 9


@pytest.mark.parametrize("length", [100, 5000])
def test_a_tail_costs_the_same_however_long_the_run(length: int) -> None:
    storage = CountingStorage(f"memory://series-{next(_NAMES)}")
    _write(storage, 1, range(1, length + 1), 10)
    storage.reset()
    assert [row.step for row in read_tail(storage, "s", rows=15)] == list(range(length - 14, length + 1))
    assert storage.reads == 2 and storage.lists == 2 and storage.probes == 0


def test_following_a_run_reads_every_segment_once() -> None:
    storage = CountingStorage(f"memory://series-{next(_NAMES)}")
    _write(storage, 1, range(1, 101), 10)
    series = MetricSeries(storage, "s")
    storage.reset()
    assert len(series.look().steps) == 100 and storage.reads == 10
    series.look()
    assert storage.reads == 10
    _write(storage, 2, range(91, 121), 10)
    columns = series.look()
    assert storage.reads == 13
    assert columns.steps.tolist() == list(range(1, 121))
    assert [int(value) for value in columns.column("ntp")[[0, 89, 90, 119]]] == [1, 1, 2, 2]
    assert columns.column("timing.seconds")[0] == 1.5
    assert np.isnan(columns.column("batch_digest")).all() and len(columns.column("nothing")) == 120
    assert columns.until(95).steps.tolist() == list(range(1, 96)) and columns.until(None) is columns


def test_a_segment_that_another_replaced_is_forgotten(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    _write(storage, 1, range(1, 5), 2)
    series = MetricSeries(storage, "s")
    assert len(series.look().steps) == 4
    storage.delete("s/metrics/000001-000/000000003.jsonl")
    assert series.look().steps.tolist() == [1, 2]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 30),
)
def test_all_ways_of_reading_agree(attempts: list[tuple[int, int, int]], rows: int) -> None:
    """Whatever attempts resumed where and however segments were cut."""
    storage = Storage(f"memory://series-{next(_NAMES)}")
    series = MetricSeries(storage, "s")
    first, reached = 1, 0
    for attempt, (advance, count, segment) in enumerate(attempts, start=1):
        first = min(
            first + advance - 1, reached + 1
        )  # milestones stay: no attempt resumes before the last one did
        _write(storage, attempt, range(first, first + count), segment)
        reached = first + count - 1
        columns, whole = series.look(), read_metrics(storage, "s")
        assert columns.steps.tolist() == [row.step for row in whole]
        assert columns.column("ntp").tolist() == [row.values["ntp"] for row in whole]
    newest = [row for row in read_metrics(storage, "s") if row.step <= reached][-rows:]
    assert read_tail(storage, "s", rows=rows) == newest
    assert all(math.isfinite(row.values["ntp"]) for row in newest)
