"""Memory: no rank ever holds the whole model, and steps leave nothing behind."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from jobs.runs.metric_log import MetricRow, MetricWriter
from jobs.training import train_loop
from jobs.training.train_job import TrainJob
from pipeline.storage import Storage
from tests.benchmarks.bench_model import ncp_spec
from tests.memory import growth_worker, resident_bytes
from tests.staged import stage_prose
from tests.training import SHARDS, join_group, run_ranks, small_job

pytestmark = pytest.mark.matrix


def test_two_ranks_grow_by_at_most_two_thirds_of_what_one_does(tmp_path: Path) -> None:
    """Of 210M parameters. The larger the model, the nearer to a half: see docs/benchmarks/memory.md."""
    job = small_job(str(tmp_path), "memory", model=ncp_spec(896, 64))
    growth = {}
    for ranks in (1, 2):
        store = tmp_path / f"group{ranks}"
        mp.spawn(growth_worker, args=(ranks, store, job, 64), nprocs=ranks)  # type: ignore[attr-defined]
        growth[ranks] = max(int(store.with_suffix(f".rank{rank}").read_text()) for rank in range(ranks))
    assert growth[2] <= 0.65 * growth[1], growth


def _noting_worker(rank: int, world_size: int, store: Path, job: TrainJob) -> None:
    held: list[int] = []

    class NotingWriter(MetricWriter):
        def add(self, row: MetricRow) -> None:
            held.append(resident_bytes())
            super().add(row)

    train_loop.MetricWriter = NotingWriter
    join_group(rank, world_size, store)
    train_loop.train(job)
    store.with_suffix(".json").write_text(json.dumps(held))
    dist.barrier()
    os._exit(0)


def test_steps_and_milestones_leave_no_memory_behind(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "store"))
    stage_prose(storage, SHARDS)
    job = small_job(storage.url, "leak", stop=300, checkpoint_every_steps=20)
    run_ranks(tmp_path / "group", job, 1, _noting_worker)
    held = json.loads((tmp_path / "group.json").read_text())
    early, late = statistics.median(held[60:100]), statistics.median(held[-40:])
    assert late - early < 8 * 2**20, (early, late)
