"""The training loop without Ray: exact resume, equal batches at any world size, transitions, retention, fencing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schedule import learning_rate
from curriculum.schema import PrecisionSpec, ScheduleSpec, StageSpec
from jobs.metric_log import read_metrics
from jobs.train_job import Parent, TrainJob
from jobs.train_loop import train
from pipeline.dag.holder import Holder
from pipeline.dag.lease import Superseded
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.ncp_process import read_checkpoint
from tests.staged import stage_prose

LOSS_TOLERANCE = 2e-4
"""Between world sizes: float32 sums in another order, over a dozen steps."""

SHARDS = "steps/shards-prose"


@pytest.fixture(scope="module")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A storage with the prose source staged into shards."""
    storage = Storage(str(tmp_path_factory.mktemp("train-loop")))
    stage_prose(storage, SHARDS)
    return storage.url


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    _join(0, 1, tmp_path_factory.mktemp("group") / "store")
    yield
    dist.destroy_process_group()


def _job(storage_url: str, name: str, *, stop: int = 8, attempt: int = 1, **changes: Any) -> TrainJob:
    stage = StageSpec(
        mixture={"prose": 1.0},
        tokens=stop * 512,
        horizon_tokens=20 * 512,
        sequence_length=64,
        global_batch_tokens=512,
        order_block=16,
        seed=7,
        optimizer=OptimizerSpec(lr=3e-3),
        schedule=ScheduleSpec(warmup_steps=2),
    )
    job = TrainJob(
        storage_url=storage_url,
        step_key=f"steps/{name}",
        attempt=attempt,
        run="test",
        stage_name="stage1",
        stage=stage,
        model=replace(ModelSpec.preset("tiny"), hidden_size=32, intermediate_size=64, max_sequence_length=64),
        precision=PrecisionSpec(),
        shards={"prose": SHARDS},
        parent=None,
        tokens_before=0,
        stop_step=stop,
        micro_batch_size=2,
        checkpoint_every_steps=3,
        log_every_steps=1,
    )
    return replace(job, **changes)


def _hold(job: TrainJob) -> TrainJob:
    """Take the lease that the DAG's runner would hold for this attempt."""
    record = {"run": job.run, "holder": Holder.here().record(), "at": 0}
    Storage(job.storage_url).create_json(f"{job.step_key}/lease/{job.attempt:06d}.json", record)
    return job


def _tensors(job: TrainJob, step: int) -> dict[str, torch.Tensor]:
    storage = Storage(job.storage_url)
    marker = StepStore(storage, job.step_key).milestone(step)
    assert marker is not None
    return read_checkpoint(storage, marker)


def _values(job: TrainJob) -> list[dict[str, Any]]:
    return [row.values for row in read_metrics(Storage(job.storage_url), job.step_key)]


def _assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def _join(rank: int, world_size: int, store: Path) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), world_size), rank=rank, world_size=world_size
    )


def _worker(rank: int, world_size: int, store: Path, job: TrainJob) -> None:
    _join(rank, world_size, store)
    train(job)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in the interpreter's shutdown, after the work is done


@pytest.fixture
def train_at(tmp_path: Path) -> Callable[[TrainJob, int], None]:
    """Train in that many fresh processes."""

    def run(job: TrainJob, world_size: int) -> None:
        store = tmp_path / f"group-{job.step_key.rpartition('/')[2]}-{job.attempt}"
        mp.spawn(_worker, args=(world_size, store, _hold(job)), nprocs=world_size)  # type: ignore[attr-defined]

    return run


def test_stopping_and_resuming_takes_the_very_same_steps(storage_url: str, one_rank: None) -> None:
    whole = _hold(_job(storage_url, "whole"))
    train(whole)
    for attempt, stop in enumerate((4, 7, 8), start=1):
        train(_hold(_job(storage_url, "parts", stop=stop, attempt=attempt)))
    parts = _job(storage_url, "parts")
    _assert_equal(_tensors(whole, 8), _tensors(parts, 8))
    assert _values(whole) == _values(parts)


def test_a_loop_that_is_already_at_its_stop_does_nothing(storage_url: str, one_rank: None) -> None:
    job = _hold(_job(storage_url, "noop", stop=2))
    train(job)
    before = Storage(storage_url).keys(f"{job.step_key}/checkpoints")
    train(job)
    assert Storage(storage_url).keys(f"{job.step_key}/checkpoints") == before
    assert len(_values(job)) == 2


def test_metrics_are_exact_integers_and_the_configured_rates(storage_url: str, one_rank: None) -> None:
    job = _hold(_job(storage_url, "columns", stop=3, tokens_before=10_000_000_000_001))
    train(job)
    rows = _values(job)
    assert [row["tokens_in_stage"] for row in rows] == [512, 1024, 1536]
    assert [row["tokens_total"] for row in rows] == [10_000_000_000_001 + n for n in (512, 1024, 1536)]
    assert [row["lr"] for row in rows] == [learning_rate(job.stage, step) for step in range(3)]


def test_every_world_size_sees_the_same_batches_and_a_milestone_of_one_loads_at_another(
    storage_url: str, one_rank: None, train_at: Callable[[TrainJob, int], None]
) -> None:
    """3 ranks (which do not divide the batch of 8 windows), then 1, against 1 rank all the way."""
    alone = _hold(_job(storage_url, "alone"))
    train(alone)
    train_at(_job(storage_url, "resized", stop=4), 3)
    train(_hold(_job(storage_url, "resized", attempt=2)))
    ours, theirs = _values(_job(storage_url, "resized")), _values(alone)
    assert [row["batch_digest"] for row in ours] == [row["batch_digest"] for row in theirs]
    for column in ("ntp", "ncp", "vq", "grad_norm"):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine[column] == pytest.approx(other[column], rel=LOSS_TOLERANCE)
    ours_first, theirs_first = _tensors(_job(storage_url, "resized"), 0), _tensors(alone, 0)
    _assert_equal(ours_first, theirs_first)  # the same weights at any world size


def test_a_stage_starts_from_its_parent_with_a_rate_and_position_of_its_own(
    storage_url: str, one_rank: None
) -> None:
    parent = _hold(_job(storage_url, "parent", stop=4))
    train(parent)
    origin = Parent(stage="stage1", step_key=parent.step_key, step=4, load="weights+optimizer")
    stage = replace(
        parent.stage, seed=8, optimizer=OptimizerSpec(lr=1e-9), schedule=ScheduleSpec(kind="constant")
    )
    child = _hold(
        _job(
            storage_url,
            "child",
            stop=1,
            stage=stage,
            parent=origin,
            tokens_before=4 * 512,
            stage_name="stage2",
        )
    )
    train(child)
    row = _values(child)[0]
    assert (row["lr"], row["tokens_in_stage"], row["tokens_total"]) == (1e-9, 512, 5 * 512)
    before, after = _tensors(parent, 4), _tensors(child, 1)
    steps = [name for name in after if name.endswith("/step")]
    assert steps and all(
        after[name] == before[name] + 1 for name in steps
    )  # moments went on from the parent's
    for name in (name for name in after if name.startswith("model/")):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-7)

    fresh = replace(origin, load="weights")
    anew = _hold(_job(storage_url, "anew", stop=1, stage=stage, parent=fresh, tokens_before=4 * 512))
    train(anew)
    assert all(_tensors(anew, 1)[name] == 1 for name in steps)


def test_a_superseded_attempt_stops_and_publishes_nothing_more(storage_url: str, one_rank: None) -> None:
    job = _hold(_job(storage_url, "fenced", stop=3))
    train(job)
    _hold(replace(job, attempt=2))
    with pytest.raises(Superseded):
        train(replace(job, stop_step=6))
    assert StepStore(Storage(storage_url), job.step_key).milestones() == [0, 3]


def test_only_the_newest_the_first_and_what_runs_name_is_kept(storage_url: str, one_rank: None) -> None:
    storage = Storage(storage_url)
    job = _hold(_job(storage_url, "pruned", stop=14))
    named = {"name": "stage1", "key": job.step_key, "fingerprint": "f", "milestone": 6}
    storage.create_json("runs/other/run.json", {"steps": [named]})
    train(job)
    assert StepStore(storage, job.step_key).milestones() == [0, 6, 14]
    kept = {key.split("/")[3] for key in storage.keys(f"{job.step_key}/checkpoints")}
    assert kept == {"000000000-a000001", "000000006-a000001", "000000014-a000001"}


def test_a_crash_between_data_and_marker_leaves_the_milestone_before_as_the_newest(
    storage_url: str, one_rank: None
) -> None:
    job = _hold(_job(storage_url, "half", stop=3))
    train(job)
    storage = Storage(storage_url)
    storage.write_bytes(f"{job.step_key}/checkpoints/000000006-a000001/__0_0.distcp", b"half")
    train(_hold(replace(job, attempt=2, stop_step=6)))
    marker = StepStore(storage, job.step_key).milestone(6)
    assert marker is not None and marker["data"].endswith("000000006-a000002")
    assert json.dumps(marker)  # plain values only
