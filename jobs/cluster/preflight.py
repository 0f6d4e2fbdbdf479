"""Before any training starts: would it hang, or lose what it writes? A message instead of a hang."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from curriculum.errors import InputError
from curriculum.schema import RuntimeSpec
from jobs.cluster.capacity import Demand, open_nodes, places, shortage
from pipeline.storage import Storage


class PreflightError(InputError):
    """The cluster cannot run this as asked. Names the key, the value and the fix."""


def preflight(
    storage: Storage,
    runtime: RuntimeSpec,
    *,
    beside: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Check the connected Ray cluster against the recipe's runtime. Raises PreflightError.

    `beside`: whether some stage is evaluated while the next one trains. The nodes of a cluster that RAY_ADDRESS names may
    still be starting: they are waited for `runtime.node_wait_seconds`. One that `runtime.cluster_grows` gets each step's
    nodes when that step asks; here it is only told what is to come.
    """
    import ray

    missing = shortage(open_nodes(), training_demand(runtime))
    if missing is not None and runtime.cluster_grows:
        say(f"the cluster will have to grow for training: {missing.removeprefix('waiting for a node: ')}")
    elif missing is not None and os.environ.get("RAY_ADDRESS"):
        say(missing)
        _await_nodes(runtime)
    nodes = [node for node in open_nodes() if node["Alive"]]
    if not runtime.cluster_grows:
        check_resources(ray.cluster_resources(), runtime, beside=beside)
        check_places(nodes, runtime)
    check_shared_storage(storage, nodes)


def cluster_capacity() -> dict[str, float]:
    """CPUs and GPUs of the connected cluster, which the steps that run at the same time share."""
    import ray

    available = ray.cluster_resources()
    return {resource: available.get(resource, 0.0) for resource in ("CPU", "GPU")}


def training_demand(runtime: RuntimeSpec) -> Demand:
    """What the training workers need, all at once: of an elastic stage, the least of them."""
    return Demand(count=runtime.min_workers, cpus=runtime.cpus_per_worker, gpus=runtime.gpus_per_worker)


def staging_demand(runtime: RuntimeSpec) -> Demand:
    """The least that staging goes on with: room for one task."""
    return Demand(count=1, cpus=runtime.staging_cpus_per_task)


def _await_nodes(runtime: RuntimeSpec) -> None:
    give_up = time.monotonic() + runtime.node_wait_seconds
    while shortage(open_nodes(), training_demand(runtime)) is not None and time.monotonic() < give_up:
        time.sleep(1.0)


def check_places(nodes: list[Any], runtime: RuntimeSpec) -> None:
    """Raise PreflightError when the cluster has enough in all, but not in pieces that hold a worker."""
    demand = training_demand(runtime)
    found = places(nodes, demand)
    if found < demand.count:
        raise PreflightError(
            f"runtime.num_workers: {demand} needed, each on one node; the {len(nodes)} nodes have room for {found}; "
            "lower runtime.num_workers, runtime.cpus_per_worker or runtime.gpus_per_worker"
        )


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
    """Raise PreflightError when a local directory would have to be shared by several hosts and is not.

    A directory may be a shared mount, so every other host is asked: it looks for what this one just wrote, and writes
    something that this one looks for.
    """
    hosts = {socket.gethostname(), *(node["NodeManagerHostname"] for node in nodes)}
    if not storage.local or len(hosts) <= 1:
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
        raise PreflightError(
            f"storage: {storage.url!r} is a local directory that {', '.join(sorted(blind))} does not see "
            f"({host}: {reason}); use s3://... or a mount that every node shares"
        )


def _sees_and_writes(storage_url: str, seen: str, written: str) -> str:
    """Runs on another host: why it does not share the storage, or an empty string."""
    try:
        storage = Storage(storage_url)
        storage.write_bytes(written, b"written")
        return "" if storage.exists(seen) else "what the driver wrote is not seen there"
    except Exception as error:  # whatever the store's client raises: the reason is for a person to read
        return f"{type(error).__name__}: {error}".splitlines()[0]
