"""The training loop under Ray Train against a bare torch.distributed script of the same model and batches.

    python -m tests.benchmarks.bench_loop
    python -m tests.benchmarks.bench_loop --rounds 5 --steps 30 --width 192

The two take turns, round by round, each in fresh worker processes. The bare script is what one would write for torchrun:
the same sharded model, loader and optimizers, its batch read in the step, the loss summed over ranks and printed every
step; no milestones, metrics, skip rule, watchdog or progress. The first steps of each round are left out. Wall seconds are
what counts and what other load disturbs; CPU seconds of rank 0's whole process (all its threads) are hardly disturbed.

From the second round on the loop resumes from the milestone of the round before: the time from entering the loop in a
worker to the end of the first step is the resume time beyond process start.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from curriculum.model_spec import ConceptSpec, ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schedule import learning_rate
from curriculum.schema import PrecisionSpec, RuntimeSpec, StageSpec
from jobs.cluster.ray_session import ray_session
from jobs.runs.metric_log import read_metrics
from jobs.training import train_loop
from jobs.training.step_clock import StepClock
from jobs.training.train_job import TrainJob
from ncp_model.flops import total_parameters
from ncp_model.losses import LossDenominators, loss_counts
from ncp_model.optim import clip_grad_norm
from pipeline.dag.holder import Holder
from pipeline.storage import Storage
from tests.staged import stage_prose

SHARDS = "steps/shards-prose"
WARM_UP = 3
"""First steps of a round that are not counted."""
VOCAB_SIZE = 2048


@dataclass
class Clocks:
    """Wall and CPU seconds of rank 0's steps, one list a round."""

    wall: list[list[float]] = field(default_factory=list)
    cpu: list[list[float]] = field(default_factory=list)

    def add(self, marks: Sequence[Sequence[float]]) -> None:
        """`marks`: (wall, CPU) at the end of each step."""
        for column, target in enumerate((self.wall, self.cpu)):
            counted = [mark[column] for mark in marks[WARM_UP - 1 :]]
            target.append([after - before for before, after in itertools.pairwise(counted)])


def bench_job(storage: Storage, settings: argparse.Namespace) -> TrainJob:
    """One stage of the network at the asked width, far from its stop."""
    batch = settings.batch * settings.length
    model = replace(
        ModelSpec.preset("tiny"),
        hidden_size=settings.width,
        intermediate_size=settings.width * 8 // 3 // 32 * 32,
        num_heads=max(1, settings.width // 64),
        vocab_size=VOCAB_SIZE,
        max_sequence_length=settings.length,
        window=settings.length // 2,
        concept=ConceptSpec(segments=4, entries=32),
    )
    stage = StageSpec(
        mixture={"prose": 1.0},
        tokens=batch * settings.rounds * settings.steps,
        sequence_length=settings.length,
        global_batch_tokens=batch,
        order_block=16,
        optimizer=OptimizerSpec(lr=1e-3),
        on_shortage="repeat",
    )
    return TrainJob(
        storage_url=storage.url,
        step_key="steps/bench",
        attempt=0,
        run="bench",
        stage_name="bench",
        stage=stage,
        model=model,
        precision=PrecisionSpec(),
        shards={"prose": SHARDS},
        parent=None,
        tokens_before=0,
        stop_step=0,
        runtime=RuntimeSpec(
            micro_batch_size=settings.micro_batch,
            checkpoint_every_steps=max(1, settings.steps // 2),
            log_every_steps=settings.log_every,
            hang_timeout_seconds=0.0,
        ),
    )


def round_job(job: TrainJob, number: int, steps: int) -> TrainJob:
    """Round `number` (from 0): an attempt of its own, with the lease that it needs."""
    job = replace(job, attempt=number + 1, stop_step=(number + 1) * steps)
    record = {"run": job.run, "holder": Holder.here().record(), "at": 0}
    Storage(job.storage_url).create_json(f"{job.step_key}/lease/{job.attempt:06d}.json", record)
    return job


def ray_round(job: TrainJob, workers: int, marks_file: Path) -> None:
    """Train the round's steps under Ray Train, as the `stage` step does."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        _ray_worker,
        train_loop_config={"job": job, "marks": str(marks_file)},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name=f"round-{job.attempt}",
            storage_path=f"{job.storage_url}/ray-train",
            failure_config=FailureConfig(max_failures=0),
        ),
    ).fit()


def spawned_round(job: TrainJob, workers: int, marks_file: Path) -> None:
    """As `ray_round`, in processes of our own: what the loop costs by itself."""
    store = f"{marks_file}.store"
    mp.spawn(_spawned_worker, args=(workers, store, job, str(marks_file)), nprocs=workers)  # type: ignore[attr-defined]


def _spawned_worker(rank: int, workers: int, store: str, job: TrainJob, marks_file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, workers), rank=rank, world_size=workers)
    _ray_worker({"job": job, "marks": marks_file})
    dist.barrier()
    os._exit(0)


def _ray_worker(config: dict[str, Any]) -> None:
    marks = [(time.monotonic(), time.process_time())]

    class NotingClock(StepClock):
        def step_taken(self) -> None:
            marks.append((time.monotonic(), time.process_time()))
            super().step_taken()

    train_loop.StepClock = NotingClock
    train_loop.train(config["job"])
    if dist.get_rank() == 0:
        Path(config["marks"]).write_text(json.dumps(marks))


def bare_round(job: TrainJob, workers: int, first: int, marks_file: Path) -> None:
    """The same steps by the bare script, in fresh processes."""
    store = f"{marks_file}.store"
    mp.spawn(_bare_worker, args=(workers, store, job, first, str(marks_file)), nprocs=workers)  # type: ignore[attr-defined]


def _bare_worker(rank: int, workers: int, store: str, job: TrainJob, first: int, marks_file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, workers), rank=rank, world_size=workers)
    loader = train_loop.build_loader(Storage(job.storage_url), job)
    model, optimizers = train_loop.build_sharded(job)
    train_loop.initialize_weights(model, job.model, job.stage.seed)
    model.train()
    sink = open(f"{marks_file}.log", "w")  # noqa: SIM115
    marks = [(time.monotonic(), time.process_time())]
    for step in range(first, job.stop_step):
        batches = loader.batch(step, rank, workers, job.runtime.micro_batch_size)
        counts = [loss_counts(batch.labels, job.model.concept.chunk_size) for batch in batches]
        den = LossDenominators(
            ntp=loader.labels_per_batch,
            ncp=workers * sum(c.ncp for c in counts),
            vq=workers * sum(c.vq for c in counts),
        )
        total = torch.zeros(())
        optimizers.zero_grad()
        for batch in batches:
            out = model(batch.input_ids, labels=batch.labels, denominators=den)
            (out.loss * workers).backward()
            total += out.ntp.detach()
        dist.all_reduce(total)
        clip_grad_norm(model, job.stage.optimizer.clip_norm)
        optimizers.step(learning_rate(job.stage, step))
        line = f"step {step + 1} loss {total.item() / loader.labels_per_batch:.4f}"
        marks.append((time.monotonic(), time.process_time()))
        if rank == 0:
            sink.write(f"{line}\n")
    if rank == 0:
        Path(marks_file).write_text(json.dumps(marks))
    dist.barrier()
    os._exit(0)


def _spread(rounds: Sequence[Sequence[float]]) -> str:
    medians = sorted(statistics.median(steps) for steps in rounds)
    return f"{statistics.median(medians):.4f} ({medians[0]:.4f} - {medians[-1]:.4f})"


def _ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> str:
    ratios = sorted(statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} - {ratios[-1]:.3f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print a markdown page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=24, help="of a round, for each of the two")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a global batch")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument(
        "--log-every", type=int, default=10, help="steps between metric rows, as in olmo3-7b-ncp"
    )
    parser.add_argument(
        "--without-ray",
        action="store_true",
        help="run the loop in processes of our own, for what it costs by itself",
    )
    settings = parser.parse_args(argv)
    name = "loop without Ray" if settings.without_ray else "Ray Train loop"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ncp-bench-loop-") as folder:
        storage = Storage(f"{folder}/store")
        stage_prose(storage, SHARDS, VOCAB_SIZE)
        job = bench_job(storage, settings)
        ours, bare, resumes, resume_cpu, fits = Clocks(), Clocks(), [], [], []
        load = []
        with contextlib.nullcontext() if settings.without_ray else ray_session(RuntimeSpec()):
            for number in range(settings.rounds):
                current = round_job(job, number, settings.steps)
                marks_file = Path(folder) / f"ray-{number}.json"
                begun = time.monotonic()
                (spawned_round if settings.without_ray else ray_round)(current, settings.workers, marks_file)
                marks = json.loads(marks_file.read_text())
                if number:
                    resumes.append(marks[1][0] - marks[0][0])
                    resume_cpu.append(marks[1][1] - marks[0][1])
                    fits.append(marks[1][0] - begun)
                ours.add(marks)
                marks_file = Path(folder) / f"bare-{number}.json"
                bare_round(current, settings.workers, number * settings.steps, marks_file)
                bare.add(json.loads(marks_file.read_text()))
                load.append(os.getloadavg()[0])
        rows = read_metrics(storage, job.step_key)
    timing = [row.timing for row in rows if (row.step - 1) % settings.steps >= WARM_UP]
    step = statistics.median(t["seconds"] for t in timing)
    stalls = [t["checkpoint_stall"] for t in timing if t.get("checkpoint_stall", 0.0) > 0]
    waits = [t["data_wait"] / t["seconds"] for t in timing]
    print("# The loop under Ray Train against a bare torch.distributed script\n")
    print(
        f"{platform.machine()} CPU, {os.cpu_count()} cores, 1 thread a worker, torch {torch.__version__}, Python "
        f"{platform.python_version()}; load average {min(load):.1f} - {max(load):.1f} during the rounds. "
        f"{settings.workers} workers, {total_parameters(job.model) / 1e6:.1f}M parameters, {settings.batch} x "
        f"{settings.length} tokens a step, {settings.rounds} rounds of {settings.steps} steps each, the first {WARM_UP} left out; a metric row every {settings.log_every} steps.\n"
    )
    print(f"| | bare script | {name} | ratio of a round's medians |")
    print("|---|---:|---:|---:|")
    print(f"| wall s a step | {_spread(bare.wall)} | {_spread(ours.wall)} | {_ratio(ours.wall, bare.wall)} |")
    print(
        f"| CPU s a step, rank 0 | {_spread(bare.cpu)} | {_spread(ours.cpu)} | {_ratio(ours.cpu, bare.cpu)} |"
    )
    print("\nMedian of the rounds' medians (lowest - highest). Goal: at most 1.03.\n")
    print("| | measured | goal |")
    print("|---|---:|---:|")
    if resumes:
        print(
            f"| resume: loop entered to first step taken, s | {statistics.median(resumes):.2f} "
            f"({min(resumes):.2f} - {max(resumes):.2f}) | 5 |"
        )
        print(f"| of it, CPU s of rank 0 | {statistics.median(resume_cpu):.2f} | - |")
        print(
            f"| before it, the start of the workers, s | {statistics.median(f - r for f, r in zip(fits, resumes, strict=True)):.2f} | - |"
        )
    print(f"| waiting for data, share of a step (median) | {statistics.median(waits):.2%} | 1 % |")
    if stalls:
        print(
            f"| checkpoint stall, steps (median, highest) | {statistics.median(stalls) / step:.2f}, {max(stalls) / step:.2f} | 1 |"
        )


if __name__ == "__main__":
    main()
