"""How long training stands still for a checkpoint: written before going on, against written beside the training.

    python -m tests.benchmarks.bench_checkpoint                    # demo size and some 40M parameters, disk and S3
    python -m tests.benchmarks.bench_checkpoint --sizes demo --storages disk --rounds 3

Two ranks under FSDP2 on gloo train a model of random tokens. In each round the two ways take turns in one process, so
that other load hits both alike: a milestone by `save` that returns when it is complete, then one that is written by the
background thread. The stall is what the loop waits in `save`, in seconds and in undisturbed steps (the median of those
between checkpoints); `beside` is the median step while a milestone is in flight. S3 is SeaweedFS on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from curriculum.load import load_recipe
from curriculum.model_spec import ConceptSpec, ModelSpec
from curriculum.schema import PrecisionSpec, RuntimeSpec
from jobs.training.milestone_writer import MilestoneWriter
from jobs.training.milestones import training_state
from jobs.training.train_job import TrainJob
from ncp_model import build_model
from ncp_model.flops import total_parameters
from ncp_model.init import initialize_weights
from ncp_model.optim import Optimizers, build_optimizers
from ncp_model.parallel import shard_model
from pipeline.dag.holder import Holder
from pipeline.storage import Storage
from tests.s3_server import s3_environment, s3_server

RANKS = 2
LENGTH, SEQUENCES = 128, 4
CALM_STEPS = 4


WIDTHS = {"small": 256, "medium": 512}


def size_spec(name: str) -> ModelSpec:
    """The demo's model, or a wider one."""
    if name == "demo":
        return replace(load_recipe("demo").model, max_sequence_length=LENGTH)
    width = WIDTHS[name]
    return ModelSpec(
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_heads=width // 64,
        encoder_layers=4,
        concept_layers=2,
        decoder_layers=4,
        vocab_size=8192,
        max_sequence_length=LENGTH,
        window=64,
        concept=ConceptSpec(segments=16, entries=64, codebook_init="normal"),
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size on one storage, in seconds unless said otherwise. `sync` and `beside` hold one entry a round."""

    state_bytes: int
    calm: list[float]
    sync_stall: list[float]
    async_stall: list[float]
    async_write: list[float]
    beside: list[float]


class _Trainee:
    """One rank's model, its training step and its writer."""

    def __init__(self, spec: ModelSpec, url: str, name: str):
        recipe = load_recipe("demo")
        self.job = TrainJob(
            storage_url=url,
            step_key=f"steps/{name}-0123456789ab",
            attempt=1,
            run="bench",
            stage_name="stage1",
            stage=recipe.stages["stage1"],
            model=spec,
            precision=PrecisionSpec(),
            shards={},
            parent=None,
            tokens_before=0,
            stop_step=1_000_000,
            runtime=RuntimeSpec(
                micro_batch_size=SEQUENCES, checkpoint_every_steps=1, hang_timeout_seconds=0.0
            ),
        )
        storage = Storage(url)
        if dist.get_rank() == 0:
            record = {"run": "bench", "holder": Holder.here().record(), "at": 0}
            storage.create_json(f"{self.job.step_key}/lease/000001.json", record)
        dist.barrier()
        self.model = build_model(spec, device="meta")
        shard_model(
            self.model,
            init_device_mesh("cpu", (RANKS,)),
            param_dtype=torch.float32,
            reduce_dtype=torch.float32,
        )
        self.model.to_empty(device="cpu")
        initialize_weights(self.model, spec, 0)
        self.optimizers: Optimizers = build_optimizers(self.model, self.job.stage.optimizer)
        waiting = replace(self.job, runtime=replace(self.job.runtime, async_checkpoints=False))
        self.sync = MilestoneWriter(storage, waiting, self.model, self.optimizers)
        self.beside = MilestoneWriter(storage, self.job, self.model, self.optimizers)
        self.ids = torch.randint(0, spec.vocab_size, (SEQUENCES, LENGTH))
        self.taken = 0

    def step(self) -> float:
        begun = time.monotonic()
        self.optimizers.zero_grad()
        self.model(self.ids, labels=self.ids).loss.backward()
        self.optimizers.step(1e-4)
        self.taken += 1
        return time.monotonic() - begun

    def state_bytes(self) -> int:
        state = training_state(self.model, self.optimizers).values()
        return sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in state)


def _measure(rank: int, group: str, results: str, size: str, url: str, rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", store=dist.FileStore(group, RANKS), rank=rank, world_size=RANKS)
    trainee = _Trainee(size_spec(size), url, size)
    for _ in range(2):
        trainee.step()
    trainee.beside.save(trainee.taken, {})  # the buffers are allocated once in a run
    trainee.beside.wait()
    calm, sync_stall, async_stall, async_write, beside = [], [], [], [], []
    for _ in range(rounds):
        calm += [trainee.step() for _ in range(CALM_STEPS)]
        sync_stall.append(trainee.sync.save(trainee.taken, {}))
        calm += [trainee.step() for _ in range(CALM_STEPS)]
        begun = time.monotonic()
        async_stall.append(trainee.beside.save(trainee.taken, {}))
        flying = torch.tensor([1])
        while int(flying):
            beside.append(trainee.step())
            flying = torch.tensor([int(trainee.beside.writing)])
            dist.all_reduce(flying)  # ranks must take the same number of steps
        async_write.append(time.monotonic() - begun)
        trainee.beside.wait()
    if rank == 0:
        measured = Measured(
            state_bytes=trainee.state_bytes(),
            calm=calm,
            sync_stall=sync_stall,
            async_stall=async_stall,
            async_write=async_write,
            beside=beside,
        )
        torch.save(measured.__dict__, results)
    dist.barrier()
    os._exit(0)


def measure(size: str, url: str, rounds: int, folder: Path) -> Measured:
    """Both ways on one storage, in fresh processes."""
    group, results = folder / f"group-{size}-{time.monotonic_ns()}", folder / f"results-{time.monotonic_ns()}"
    mp.spawn(_measure, args=(str(group), str(results), size, url, rounds), nprocs=RANKS)  # type: ignore[attr-defined]
    return Measured(**torch.load(results))


@contextlib.contextmanager
def _storage(kind: str, folder: Path) -> Iterator[str]:
    if kind == "disk":
        yield str(folder / "store")
        return
    (folder / "s3").mkdir()
    with s3_server(folder / "s3") as port, s3_environment(f"http://127.0.0.1:{port}"):
        yield "s3://ncp/store"


def _row(size: str, kind: str, measured: Measured) -> str:
    calm = statistics.median(measured.calm)
    sync, beside = statistics.median(measured.sync_stall), statistics.median(measured.async_stall)
    parameters = total_parameters(size_spec(size)) / 1e6
    return (
        f"| {size} ({parameters:.1f}M) | {measured.state_bytes / 1e6:.1f} | {kind} | {calm * 1e3:.0f} | "
        f"{sync * 1e3:.0f} ({sync / calm:.2f}) | {beside * 1e3:.1f} ({beside / calm:.3f}) | "
        f"{max(measured.async_stall) / calm:.3f} | {statistics.median(measured.async_write) * 1e3:.0f} | "
        f"{statistics.median(measured.beside) / calm:.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=["demo", *WIDTHS], default=["demo", "medium"])
    parser.add_argument("--storages", nargs="+", default=["disk", "s3"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    print("# Checkpoint stall\n")
    print(
        f"{RANKS} ranks, one thread each, {SEQUENCES * LENGTH} tokens a rank and step, {options.rounds} rounds in turn; "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python "
        f"{platform.python_version()}, torch {torch.__version__}. Medians; stalls in ms and, in brackets, in steps.\n"
    )
    print(
        "| model | MB a rank | storage | step, ms | stall, written first | stall, written beside | worst, steps | "
        "time to write beside, ms | step while writing |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for kind in options.storages:
        with tempfile.TemporaryDirectory() as folder, _storage(kind, Path(folder)) as url:
            for size in options.sizes:
                print(_row(size, kind, measure(size, url, options.rounds, Path(folder))), flush=True)
    print(
        "\nHost memory of writing beside: one further copy of the local state (`MB a rank`), kept between milestones. "
        "The last column is the ratio to an undisturbed step: here the writer shares the cores with the training."
    )


if __name__ == "__main__":
    main()
