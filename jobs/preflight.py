"""Before any training starts: would it hang, or lose what it writes? A message instead of a hang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from curriculum.schema import RuntimeSpec
from pipeline.storage import Storage


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
        needed = runtime.num_workers * each
        if needed <= available.get(resource, 0.0) < needed + each and beside:
            raise PreflightError(
                f"evaluation.when: beside needs {each:g} {resource} next to the {needed:g} of {runtime.num_workers} "
                f"workers, the cluster has {available.get(resource, 0.0):g}; lower runtime.num_workers to "
                f"{runtime.num_workers - 1}, or use before_next_stage"
            )
        if needed > available.get(resource, 0.0):
            raise PreflightError(
                f"runtime.{key}: {runtime.num_workers} workers x {each:g} {resource} = {needed:g}, the cluster has "
                f"{available.get(resource, 0.0):g}; lower runtime.num_workers or runtime.{key}"
            )
    if runtime.staging_cpus_per_task > available.get("CPU", 0.0):
        raise PreflightError(
            f"runtime.staging_cpus_per_task: {runtime.staging_cpus_per_task:g}, the cluster has "
            f"{available.get('CPU', 0.0):g} CPUs; lower it"
        )


def check_shared_storage(storage: Storage, nodes: list[Any]) -> None:
    """Raise PreflightError when a local directory would have to be seen by several hosts and is not.

    A directory may be a shared mount, so every other host is asked whether it sees what this one just wrote.
    """
    hosts = {node["NodeManagerHostname"] for node in nodes}
    if not storage.local or len(hosts) <= 1:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    key = f".probe/shared-{os.getpid()}"
    storage.write_bytes(key, b"seen")
    looked = {
        node["NodeManagerHostname"]: ray.remote(_sees)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(storage.url, key)
        for node in nodes
    }
    blind = sorted(host for host, answer in looked.items() if not ray.get(answer))
    storage.delete(key)
    if blind:
        raise PreflightError(
            f"storage: {storage.url!r} is a local directory that {', '.join(blind)} does not see; "
            "use s3://... or a mount that every node shares"
        )


def _sees(storage_url: str, key: str) -> bool:
    return Storage(storage_url).exists(key)
