"""Before any training starts: does one step fit into memory, and can the storage keep up with the checkpoints?"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

from curriculum.schema import Recipe, RuntimeSpec
from jobs.cluster.capacity import open_nodes, places
from jobs.cluster.preflight import PreflightError, training_demand
from ncp_model.flops import flops_per_token
from ncp_model.memory import checkpoint_bytes, step_memory
from pipeline.storage import Storage

MARGIN = 1.25
"""An estimate this much over the capacity is a refusal, less is a warning."""
TYPICAL_MFU = 0.4
PROBE_BYTES = 32 * 1024 * 1024


def preflight_costs(storage: Storage, recipe: Recipe, *, say: Callable[[str], None]) -> None:
    """Whether a step fits in memory, and what checkpoints cost. Raises PreflightError; warnings go to `say`."""
    nodes = [node for node in open_nodes() if node["Alive"]]
    capacity, where = worker_capacity(nodes, recipe.runtime)
    warnings = [check_step_fits(recipe, capacity, where) if capacity else None]
    if recipe.runtime.peak_flops_per_worker > 0:
        warnings.append(checkpoint_warning(recipe, write_bandwidth(storage)))
    for warning in warnings:
        if warning is not None:
            say(f"warning: {warning}")


def check_step_fits(recipe: Recipe, capacity: int, where: str) -> str | None:
    """Whether one step fits into the `capacity` bytes that a worker has on `where`.

    Raises PreflightError if weights, gradients and optimizer state alone do not, or the estimate of the whole is over by a
    quarter; returns a warning if it is over at all, since activations are an estimate.
    """
    runtime = recipe.runtime
    for name, stage in recipe.stages.items():
        need = step_memory(
            recipe.model,
            stage.optimizer,
            sequence_length=stage.sequence_length,
            micro_batch_size=runtime.micro_batch_size,
            shards=runtime.shard_size or runtime.min_workers,
            param_dtype=recipe.precision.param,
            activation_checkpointing=runtime.activation_checkpointing,
        )
        if need.total <= capacity:
            continue
        message = (
            f"runtime.micro_batch_size: a step of {name} with {runtime.micro_batch_size} x {stage.sequence_length} tokens "
            f"needs about {_gib(need.total)} on each of {runtime.min_workers} workers (weights and optimizer "
            f"{_gib(need.state)}, gathered layers {_gib(need.gathered)}, activations {_gib(need.activations)}, or Muon's step "
            f"{_gib(need.optimizer)}), and {where} "
            f"has {_gib(capacity)}; lower it, set runtime.activation_checkpointing, or raise runtime.num_workers"
        )
        if need.state + max(need.gathered, need.optimizer) > capacity or need.total > MARGIN * capacity:
            raise PreflightError(message)
        return message
    return None


def worker_capacity(nodes: list[Any], runtime: RuntimeSpec) -> tuple[int, str]:
    """Bytes that one worker has on the poorest node that could hold one, and what they are of; 0 if that is unknown."""
    if runtime.gpus_per_worker:
        found = gpu_bytes(runtime)
        return found, "its GPU"
    shares = []
    for node in nodes:
        here = places([node], training_demand(runtime))
        if here:
            shares.append((node["Resources"].get("memory", 0) / min(here, runtime.max_workers), node))
    if not shares:
        return 0, ""
    share, node = min(shares, key=lambda pair: pair[0])
    return int(share), f"a worker's share of {node['NodeManagerHostname']}"


def gpu_bytes(runtime: RuntimeSpec) -> int:
    """Memory of one GPU, asked of a worker's place; 0 when none became free within a minute."""
    import ray

    task = ray.remote(_gpu_bytes).options(num_cpus=0, num_gpus=runtime.gpus_per_worker).remote()
    ready, _ = ray.wait([task], timeout=60)
    if not ready:
        ray.cancel(task)
        return 0
    return ray.get(task)


def _gpu_bytes() -> int:
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def checkpoint_warning(recipe: Recipe, bytes_per_second: float) -> str | None:
    """What to say when writing checkpoints takes longer than the steps between them; None if it does not, or is unknown.

    `bytes_per_second` is what one writer gets; all workers write at the same time. The time of a step is known beforehand
    only where `runtime.peak_flops_per_worker` is: it is taken at 40 % of that.
    """
    runtime = recipe.runtime
    if runtime.peak_flops_per_worker <= 0:
        return None
    for name, stage in recipe.stages.items():
        size = checkpoint_bytes(recipe.model, stage.optimizer)
        writing = size / (bytes_per_second * runtime.min_workers)
        flops = stage.global_batch_tokens * flops_per_token(recipe.model, stage.sequence_length).total
        step = flops / (TYPICAL_MFU * runtime.peak_flops_per_worker * runtime.min_workers)
        if writing > runtime.checkpoint_every_steps * step:
            return (
                f"runtime.checkpoint_every_steps: a checkpoint of {name} is {_gib(size)} and takes about {writing:.0f} s at the "
                f"measured {bytes_per_second / 1e6:.0f} MB/s a worker; {runtime.checkpoint_every_steps} steps take about "
                f"{runtime.checkpoint_every_steps * step:.0f} s, so training would wait for them; use at least "
                f"{math.ceil(writing / step)}"
            )
    return None


def write_bandwidth(storage: Storage) -> float:
    """Bytes per second of one large object, written from here."""
    key = f".probe/bandwidth-{os.getpid()}"
    data = os.urandom(PROBE_BYTES)
    begun = time.monotonic()
    storage.write_bytes(key, data)
    seconds = time.monotonic() - begun
    storage.delete(key)
    return PROBE_BYTES / max(seconds, 1e-6)


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"
