"""The training loop in processes of a test's own: a small job, its lease, real gloo ranks, and what they left in storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schema import PrecisionSpec, RuntimeSpec, ScheduleSpec, StageSpec
from jobs.runs.metric_log import read_metrics
from jobs.training.train_job import TrainJob
from jobs.training.train_loop import train
from pipeline.dag.holder import Holder
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.ncp_process import read_checkpoint

SHARDS = "steps/shards-prose"
"""Where `tests.staged.stage_prose` is asked to put the shards of a small job."""

SMALL_MODEL = replace(ModelSpec.preset("tiny"), hidden_size=32, intermediate_size=64, max_sequence_length=64)


def small_job(
    storage_url: str,
    name: str,
    *,
    stop: int = 8,
    attempt: int = 1,
    stage_fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TrainJob:
    """Steps of 512 tokens of staged prose; `stage_fields` and `changes` replace fields of its stage, of the job and of its runtime."""
    stage: dict[str, Any] = {
        "mixture": {"prose": 1.0},
        "tokens": stop * 512,
        "horizon_tokens": 20 * 512,
        "sequence_length": 64,
        "global_batch_tokens": 512,
        "order_block": 16,
        "seed": 7,
        "optimizer": OptimizerSpec(lr=3e-3),
        "schedule": ScheduleSpec(warmup_steps=2),
        **(stage_fields or {}),
    }
    job = TrainJob(
        storage_url=storage_url,
        step_key=f"steps/{name}",
        attempt=attempt,
        run="test",
        stage_name="stage1",
        stage=StageSpec(**stage),
        model=SMALL_MODEL,
        precision=PrecisionSpec(),
        shards={"prose": SHARDS},
        parent=None,
        tokens_before=0,
        stop_step=stop,
        runtime=RuntimeSpec(
            micro_batch_size=4,
            checkpoint_every_steps=3,
            hang_timeout_seconds=0.0,
            alert_dead_codebook_share=1.0,
        ),
    )
    knobs = {field.name for field in fields(RuntimeSpec)}
    runtime = replace(job.runtime, **{name: value for name, value in changes.items() if name in knobs})
    return replace(
        job, runtime=runtime, **{name: value for name, value in changes.items() if name not in knobs}
    )


def hold(job: TrainJob) -> TrainJob:
    """Take the lease that the DAG's runner would hold for this attempt."""
    record = {"run": job.run, "holder": Holder.here().record(), "at": 0}
    Storage(job.storage_url).create_json(f"{job.step_key}/lease/{job.attempt:06d}.json", record)
    return job


def milestone_tensors(job: TrainJob, step: int) -> dict[str, torch.Tensor]:
    storage = Storage(job.storage_url)
    marker = StepStore(storage, job.step_key).milestone(step)
    assert marker is not None
    return read_checkpoint(storage, marker)


def metric_values(job: TrainJob) -> list[dict[str, Any]]:
    return [row.values for row in read_metrics(Storage(job.storage_url), job.step_key)]


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def join_group(rank: int, world_size: int, store: Path) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), world_size), rank=rank, world_size=world_size
    )


@contextlib.contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """This process as a group of one."""
    join_group(0, 1, folder / "group")
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank_main(rank: int, world_size: int, store: Path, job: TrainJob) -> None:
    join_group(rank, world_size, store)
    train(job)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in the interpreter's shutdown, after the work is done


def run_ranks(store: Path, job: TrainJob, world_size: int, worker: Callable[..., None] = rank_main) -> None:
    """Run `worker(rank, world_size, store, job)`, by default training, in that many fresh processes."""
    mp.spawn(worker, args=(world_size, store, hold(job)), nprocs=world_size)  # type: ignore[attr-defined]
