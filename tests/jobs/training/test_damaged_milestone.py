"""A milestone that is not what was written: the one before is taken by itself, the end is the same, and a person hears of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.runs.stop import preemption_reason
from jobs.training import train_loop
from jobs.training.train_job import Parent, TrainJob
from jobs.training.train_loop import train
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.staged import stage_prose
from tests.training import SHARDS, assert_equal, hold, join_group, milestone_tensors, run_ranks, small_job


@pytest.fixture(scope="module")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    storage = Storage(str(tmp_path_factory.mktemp("damaged")))
    stage_prose(storage, SHARDS)
    return storage.url


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    join_group(0, 1, tmp_path_factory.mktemp("group") / "store")
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def whole(storage_url: str, one_rank: None) -> TrainJob:
    job = hold(small_job(storage_url, "whole"))
    train(job)
    return job


def flip(storage: Storage, key: str) -> None:
    path = storage.local_path(key)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def damage(storage: Storage, job: TrainJob, step: int, kind: str) -> str:
    """Spoil milestone `step`; returns what has to be named."""
    data = f"{job.step_key}/checkpoints/{step:09d}-a{job.attempt:06d}"
    match kind:
        case "flipped" | "flipped .metadata":
            name = ".metadata" if "metadata" in kind else "__0_0.distcp"
            flip(storage, f"{data}/{name}")
            return f"{name} has another sha256"
        case "truncated":
            os.truncate(storage.path(f"{data}/__0_0.distcp"), 100)
            return "__0_0.distcp has 100 bytes"
        case "missing":
            storage.delete(f"{data}/__0_0.distcp")
            return "__0_0.distcp is missing"
        case _:
            flip(storage, f"{job.step_key}/milestones/{step:09d}.json")
            return f"milestones/{step:09d}.json"


@pytest.mark.parametrize("kind", ["flipped", "flipped .metadata", "truncated", "missing", "marker"])
def test_the_one_before_is_taken_and_the_end_is_the_same_to_the_bit(
    storage_url: str, whole: TrainJob, kind: str
) -> None:
    storage = Storage(storage_url)
    name = f"damaged-{kind.replace(' ', '')}"
    first = hold(small_job(storage_url, name, stop=6))
    train(first)
    named = damage(storage, first, 6, kind)
    train(hold(small_job(storage_url, name, attempt=2)))
    assert_equal(milestone_tensors(whole, 8), milestone_tensors(first, 8))
    (alert,) = (read_alert(storage, key) for key in alert_keys(storage, first.step_key))
    assert (alert.kind, alert.severity, alert.step) == ("damaged_milestone", "error", 6)
    assert named in alert.message
    assert "milestone 3 is taken: 3 steps (1,536 tokens) are computed again" in alert.message
    assert 6 in StepStore(storage, first.step_key).milestones()  # made again
    assert len(storage.keys(f"{first.step_key}/damaged")) == 1


def test_two_damaged_ones_in_a_row_and_none_left_begin_from_the_seed(
    storage_url: str, whole: TrainJob
) -> None:
    storage = Storage(storage_url)
    first = hold(small_job(storage_url, "all-damaged", stop=3))
    train(first)
    for step in (0, 3):
        damage(storage, first, step, "flipped")
    train(hold(small_job(storage_url, "all-damaged", attempt=2)))
    assert_equal(milestone_tensors(whole, 8), milestone_tensors(first, 8))
    messages = [read_alert(storage, key).message for key in alert_keys(storage, first.step_key)]
    assert any("milestone 0 is taken: 3 steps" in text for text in messages)
    assert any("nothing is left, the stage starts anew" in text for text in messages)


@pytest.mark.matrix
def test_several_ranks_agree_on_the_one_before(storage_url: str, tmp_path: Path) -> None:
    storage = Storage(storage_url)
    first = small_job(storage_url, "ranks-damaged", stop=6)
    run_ranks(tmp_path / "first", first, 2)
    flip(storage, f"{first.step_key}/checkpoints/000000006-a000001/__1_0.distcp")
    run_ranks(tmp_path / "second", small_job(storage_url, "ranks-damaged", attempt=2), 2)
    alone = small_job(storage_url, "ranks-whole")
    run_ranks(tmp_path / "alone", alone, 2)
    assert_equal(milestone_tensors(alone, 8), milestone_tensors(first, 8))


def test_a_stage_never_starts_from_a_damaged_parent(storage_url: str, one_rank: None) -> None:
    storage = Storage(storage_url)
    first = hold(small_job(storage_url, "parent-damaged", stop=3))
    train(first)
    damage(storage, first, 3, "flipped")
    parent = Parent(stage="stage1", step_key=first.step_key, step=3, load="weights+optimizer")
    job = hold(small_job(storage_url, "child", stage_name="stage2", parent=parent))
    with pytest.raises(DamagedMilestone, match="has another sha256") as raised:
        train(job)
    assert (raised.value.step_key, raised.value.step) == (first.step_key, 3)
    assert StepStore(storage, job.step_key).milestones() == []


def test_a_notice_while_a_milestone_loads_is_a_preemption(
    storage_url: str, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in the middle of loading. It is written down, and the loop ends at its next boundary with a milestone."""
    job = hold(small_job(storage_url, "notice", stop=3))
    train(job)
    storage = Storage(storage_url)
    loading = train_loop.load_milestone

    def interrupted(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        while preemption_reason(storage, job.step_key, 2) is None:
            pass
        return loading(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(train_loop, "load_milestone", interrupted)
    train(
        hold(
            small_job(storage_url, "notice", stop=500, attempt=2, stage_fields={"horizon_tokens": 500 * 512})
        )
    )
    reason = preemption_reason(storage, job.step_key, 2)
    assert reason is not None and "SIGTERM" in reason
    assert max(StepStore(storage, job.step_key).milestones()) < 500
