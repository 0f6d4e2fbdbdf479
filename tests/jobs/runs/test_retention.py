"""Retention: what is kept and why, what goes, and the table that people read."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.runs.retention import PIN_SECONDS, PinWatch, Retention, pinned
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

KEY = "steps/stage1-0123456789ab"


def _milestone(storage: Storage, step: int, *, attempt: int = 1, **marker: Any) -> None:
    data = f"{KEY}/checkpoints/{step:09d}-a{attempt:06d}"
    storage.write_bytes(f"{data}/__0_0.distcp", b"data")
    StepStore(storage, KEY).publish_milestone(
        step,
        {
            "step": step,
            "stage": "stage1",
            "tokens_in_stage": step * 512,
            "tokens_total": 1000 + step * 512,
            "data": data,
            "stage_complete": False,
            "permanent": False,
            **marker,
        },
    )


def _named(step: int) -> dict[str, Any]:
    """A stage in a run's record, stopping there."""
    return {"name": "stage1", "kind": "stage", "key": KEY, "milestone": step, "needs": []}


def prune(storage: Storage, step_key: str, attempt: int) -> None:
    """As after a milestone."""
    retention = Retention(storage, step_key, keep=1)
    retention.prune(attempt)
    retention.write_csv()


def _left(storage: Storage) -> list[int]:
    steps = StepStore(storage, KEY).milestones()
    assert [int(name[:9]) for name in storage.children(f"{KEY}/checkpoints")] == steps
    return steps


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_the_first_the_newest_the_final_and_the_permanent_are_kept(storage: Storage) -> None:
    for step in range(0, 70, 10):
        _milestone(storage, step, permanent=step == 20, stage_complete=step == 40)
    prune(storage, KEY, 1)
    assert _left(storage) == [0, 20, 40, 60]


def test_what_a_run_names_is_kept(storage: Storage) -> None:
    for step in (0, 10, 20):
        _milestone(storage, step)
    storage.create_json("runs/other/run.json", {"steps": [_named(10)]})
    prune(storage, KEY, 1)
    assert _left(storage) == [0, 10, 20]


def test_the_newest_three_are_kept_by_default(storage: Storage) -> None:
    for step in range(0, 60, 10):
        _milestone(storage, step)
    Retention(storage, KEY).prune(1)
    assert _left(storage) == [0, 30, 40, 50]


def test_a_pinned_milestone_is_kept_until_its_last_pin_is_gone(storage: Storage) -> None:
    for step in (0, 10, 20):
        _milestone(storage, step)
    with pinned(storage, KEY, 10, "evaluation"):
        with pinned(storage, KEY, 10, "export"):
            pass
        prune(storage, KEY, 1)
        assert _left(storage) == [0, 10, 20]
    prune(storage, KEY, 1)
    assert _left(storage) == [0, 20]


def test_a_pin_whose_reader_died_stops_to_count_by_the_observers_clock(storage: Storage) -> None:
    now = 1000.0
    watch = PinWatch(storage, KEY, clock=lambda: now)
    key = f"{KEY}/pinned/000000010-0123456789ab.json"
    storage.write_json(key, {"reason": "export", "at": 1.0})  # an hour of clock skew means nothing
    storage.write_json(f"{KEY}/pinned/notes.json", {"of": "somebody else"})
    assert watch.live() == {10}
    now += PIN_SECONDS - 1
    assert watch.live() == {10}
    storage.write_json(key, {"reason": "export", "at": 2.0})  # a beat
    now += 2
    assert watch.live() == {10}
    now += PIN_SECONDS
    assert watch.live() == set()


def test_a_marker_that_is_damaged_stays_with_its_data_and_the_others_are_pruned(storage: Storage) -> None:
    for step in (0, 10, 20, 30):
        _milestone(storage, step)
    path = storage.local_path(f"{KEY}/milestones/000000010.json")
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b"stage1", b"stage3"))
    prune(storage, KEY, 2)
    assert _left(storage) == [0, 10, 30]


def test_a_milestone_is_unpinned_when_its_reader_fails(storage: Storage) -> None:
    with pytest.raises(ValueError, match="evaluation"), pinned(storage, KEY, 10, "evaluation"):
        raise ValueError("evaluation")
    assert storage.keys(f"{KEY}/pinned") == []


def test_what_earlier_attempts_left_half_written_goes_and_what_this_one_writes_stays(
    storage: Storage,
) -> None:
    _milestone(storage, 10)
    for name in ("000000020-a000001", "000000020-a000002"):
        storage.write_bytes(f"{KEY}/checkpoints/{name}/__0_0.distcp", b"half")
    prune(storage, KEY, 2)
    assert storage.children(f"{KEY}/checkpoints") == ["000000010-a000001", "000000020-a000002"]


def test_the_table_tells_stage_step_tokens_and_place(storage: Storage) -> None:
    for step in (0, 10, 20):
        _milestone(storage, step, permanent=step == 10)
    prune(storage, KEY, 1)
    rows = list(csv.DictReader(io.StringIO(storage.read_bytes(f"{KEY}/checkpoints.csv").decode())))
    assert [(row["stage"], row["step"], row["tokens_in_stage"], row["permanent"]) for row in rows] == [
        ("stage1", "0", "0", "yes"),
        ("stage1", "10", "5120", "yes"),
        ("stage1", "20", "10240", "no"),
    ]
    assert rows[1]["tokens_total"] == "6120"
    assert Path(rows[1]["path"]).is_dir()


@settings(max_examples=15)
@given(
    steps=st.sets(st.integers(0, 40), min_size=1),
    permanent=st.sets(st.integers(0, 40)),
    named=st.sets(st.integers(0, 40)),
    keep=st.integers(1, 4),
)
def test_pruning_keeps_exactly_what_has_a_reason_and_pruning_again_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], permanent: set[int], named: set[int], keep: int
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("retention")))
    for step in steps:
        _milestone(storage, step, permanent=step in permanent)
    for step in named:
        storage.create_json(f"runs/r{step}/run.json", {"recipe": {"recipe": "r"}, "steps": [_named(step)]})
    retention = Retention(storage, KEY, keep=keep)
    for _ in range(2):
        retention.prune(1)
        assert set(_left(storage)) == {
            min(steps),
            *sorted(steps)[-keep:],
            *(steps & (permanent | named)),
        }
