"""Before any training starts: would it hang, or lose what it writes? A message instead of a hang."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from curriculum.schema import Recipe, RuntimeSpec
from jobs.elastic import places, worker_resources
from ncp_model.flops import flops_per_token
from ncp_model.memory import checkpoint_bytes, step_memory
from pipeline.storage import Storage

MARGIN = 1.25
"""An estimate this much over the capacity is a refusal, less is a warning."""
TYPICAL_MFU = 0.4
PROBE_BYTES = 32 * 1024 * 1024


class PreflightError(ValueError):
    """The cluster cannot run this as asked. Names the key, the value and the fix."""


def preflight(storage: Storage, runtime: RuntimeSpec, *, beside: bool = False) -> None:
    """Check the connected Ray cluster against the recipe's runtime. Raises PreflightError.

    `beside`: whether some stage is evaluated while the next one trains.
    """
    import ray

    check_resources(ray.cluster_resources(), runtime, beside=beside)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    check_shared_storage(storage, nodes)


def preflight_costs(storage: Storage, recipe: Recipe, *, say: Callable[[str], None]) -> None:
    """Whether a step fits in memory, and what checkpoints cost. Raises PreflightError; warnings go to `say`."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    capacity, where = worker_capacity(nodes, recipe.runtime)
    warnings = [check_step_fits(recipe, capacity, where) if capacity else None]
    if recipe.runtime.peak_flops_per_worker > 0:
        warnings.append(checkpoint_warning(recipe, write_bandwidth(storage)))
    for warning in warnings:
        if warning is not None:
            say(f"warning: {warning}")


def cluster_capacity() -> dict[str, float]:
    """CPUs and GPUs of the connected cluster, which the steps that run at the same time share."""
    import ray

    available = ray.cluster_resources()
    return {resource: available.get(resource, 0.0) for resource in ("CPU", "GPU")}


def check_resources(available: Mapping[str, float], runtime: RuntimeSpec, *, beside: bool = False) -> None:
    """Raise PreflightError when the workers could never all be placed: Ray would wait for ever with a warning.

    An evaluation beside training has the resources of one worker, reserved out of training's: it is refused here
    instead of changing the number of workers, on which the exact bits of training depend.
    """
    for resource, key, each in (
        ("CPU", "cpus_per_worker", runtime.cpus_per_worker),
        ("GPU", "gpus_per_worker", runtime.gpus_per_worker),
    ):
        needed = runtime.min_workers * each
        if needed <= available.get(resource, 0.0) < needed + each and beside:
            raise PreflightError(
                f"evaluation.when: beside needs {each:g} {resource} next to the {needed:g} of {runtime.min_workers} "
                f"workers, the cluster has {available.get(resource, 0.0):g}; lower runtime.num_workers to "
                f"{runtime.min_workers - 1}, or use before_next_stage"
            )
        if needed > available.get(resource, 0.0):
            raise PreflightError(
                f"runtime.{key}: {runtime.min_workers} workers x {each:g} {resource} = {needed:g}, the cluster has "
                f"{available.get(resource, 0.0):g}; lower runtime.num_workers or runtime.{key}"
            )
    if runtime.staging_cpus_per_task > available.get("CPU", 0.0):
        raise PreflightError(
            f"runtime.staging_cpus_per_task: {runtime.staging_cpus_per_task:g}, the cluster has "
            f"{available.get('CPU', 0.0):g} CPUs; lower it"
        )


def check_shared_storage(storage: Storage, nodes: list[Any]) -> None:
    """Raise PreflightError unless every host reads what another writes.

    A directory may be a shared mount and an object store may be closed to some hosts, so each is asked: it looks for what
    this one just wrote, and writes something that this one looks for.
    """
    hosts = {node["NodeManagerHostname"] for node in nodes}
    if len(hosts) <= 1:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    prefix = f".probe/shared-{os.getpid()}"
    storage.write_bytes(f"{prefix}-driver", b"seen")
    asked = {
        node["NodeManagerHostname"]: ray.remote(_sees_and_writes)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(storage.url, f"{prefix}-driver", f"{prefix}-{node['NodeManagerHostname']}")
        for node in nodes
    }
    blind = {
        host: answer for host, answer in ((host, ray.get(task)) for host, task in asked.items()) if answer
    }
    blind |= {
        host: "what it wrote is not seen here"
        for host in asked
        if host not in blind and not storage.exists(f"{prefix}-{host}")
    }
    for name in ("driver", *asked):
        storage.delete(f"{prefix}-{name}")
    if blind:
        host, reason = min(blind.items())
        kind = "a local directory" if storage.local else "a store"
        raise PreflightError(
            f"storage: {storage.url!r} is {kind} that {', '.join(sorted(blind))} does not share ({host}: {reason}); "
            "use s3://... that every node may read and write, or a mount that every node shares"
        )


def _sees_and_writes(storage_url: str, seen: str, written: str) -> str:
    """Runs on another host: why it does not share the storage, or an empty string."""
    try:
        storage = Storage(storage_url)
        storage.write_bytes(written, b"written")
        return "" if storage.exists(seen) else "it does not see what the driver wrote"
    except Exception as error:  # whatever the store's client raises: the reason is for a person to read
        return f"{type(error).__name__}: {error}".splitlines()[0]


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
            f"{_gib(need.state)}, gathered layers {_gib(need.gathered)}, activations {_gib(need.activations)}), and {where} "
            f"has {_gib(capacity)}; lower it, set runtime.activation_checkpointing, or raise runtime.num_workers"
        )
        if need.state + need.gathered > capacity or need.total > MARGIN * capacity:
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
        here = places([node["Resources"]], worker_resources(runtime))
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
