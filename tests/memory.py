"""How much memory this process holds and has held, and what a rank needs for a sharded step: for tests and benchmarks."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist

from jobs.training.train_job import TrainJob
from jobs.training.train_loop import build_sharded
from ncp_model.init import initialize_weights
from ncp_model.losses import loss_counts
from ncp_model.optim import clip_grad_norm
from tests.training import join_group


def resident_bytes() -> int:
    """What the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most it has held since `reset_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def growth_worker(rank: int, world_size: int, store: Path, job: TrainJob, tokens: int) -> None:
    """Build, initialise, take a step of one window of `tokens` and the next one's gradients, which meet the optimizer's whole
    state; writes the peak growth in bytes beside `store`."""
    torch.set_num_threads(1)
    join_group(rank, world_size, store)
    (
        torch.ones(8, 8, requires_grad=True) @ torch.ones(8, 8)
    ).sum().backward()  # what the first use of autograd loads
    gc.collect()
    before = resident_bytes()
    reset_peak()
    model, optimizers = build_sharded(job)
    initialize_weights(model, job.model, 0)
    ids = torch.randint(0, job.model.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(rank))
    labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), dim=1)
    counts = loss_counts(labels, job.model.concept.chunk_size)
    for step in range(2):
        optimizers.zero_grad()
        model(ids, labels=labels, denominators=counts).loss.backward()
        clip_grad_norm(model, 1.0)
        if step == 0:
            optimizers.step(1e-3)
    store.with_suffix(f".rank{rank}").write_text(str(peak_bytes() - before))
    dist.barrier()
    os._exit(0)
