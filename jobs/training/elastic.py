"""How many training workers an attempt has: as many as there is room for, within `runtime.num_workers: [min, max]`.

The number is fixed for an attempt and chosen when it starts, from what is free then. A lost worker or node ends the
attempt, and the next one starts with what is left. When there is room for more, the attempt is asked to stop, as a person
would ask it: it writes a milestone, and the next attempt goes on from there with more workers and not one step lost. Batches
are the same at any number.

Ray Train 2.60 has elasticity of its own (`ScalingConfig(num_workers=(min, max))`), which is not used. It resizes by ending
the workers without a checkpoint, and within one attempt, whose number is our fence: what a worker that was cut off still
writes could not be told from the new group's data. It also counts what nodes have and not what is free, looks at the cluster
every 20 s, and waits 60 s for workers that cannot be placed: 70 s were measured from the loss of a node to the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from curriculum.schema import RuntimeSpec
from jobs.cluster.capacity import ask_cluster, open_nodes, places
from jobs.cluster.preflight import training_demand

SETTLE_SECONDS = 10.0
"""How long an attempt waits for what the one before held, or for a lost node to be struck off, before it takes less."""
POLL_SECONDS = 0.5

FreeResources = Callable[[], Sequence[Mapping[str, Any]]]
"""Nodes as `ray.nodes()` lists them, with what is free as their `Resources`."""


def is_elastic(runtime: RuntimeSpec) -> bool:
    return runtime.min_workers < runtime.max_workers


def worker_count(room: int, runtime: RuntimeSpec) -> int:
    """The largest number that is allowed and has room: a multiple of `shard_size`; 0 if that is less than the minimum."""
    unit = max(1, runtime.shard_size)
    count = min(room, runtime.max_workers) // unit * unit
    return count if count >= runtime.min_workers else 0


def free_resources() -> list[Mapping[str, Any]]:
    """What every node has free at this moment."""
    free = ask_cluster(_free_by_node)
    return [{**node, "Resources": free.get(node["NodeID"], {})} for node in open_nodes()]


def _free_by_node() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node  # no public call tells it by node

    return available_resources_per_node()


def choose_workers(
    runtime: RuntimeSpec,
    *,
    reserved: int = 0,
    free: FreeResources = free_resources,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
    settle: float = SETTLE_SECONDS,
) -> int | None:
    """The number of workers of an attempt that starts now; None when `stop` says so first.

    The maximum at once if there is room for it; after `settle` seconds whatever there is room for; below the minimum it
    waits, and says so once; of a cluster that grows by itself it asks for the minimum, so that it does. Room for `reserved` workers is left to others (an evaluation beside training).
    """
    if not is_elastic(runtime):
        return runtime.max_workers
    begun, said = time.monotonic(), False
    while not stop():
        room = max(0, places(free(), training_demand(runtime)) - reserved)
        count, waited = worker_count(room, runtime), time.monotonic() - begun
        if count == worker_count(runtime.max_workers, runtime) or (count and waited >= settle):
            return count
        if not count and waited >= settle and runtime.cluster_grows:
            return runtime.min_workers
        if not count and waited >= settle and not said:
            say(
                f"waiting for room: {runtime.min_workers} workers are the least, the cluster has room for {room}"
            )
            said = True
        time.sleep(POLL_SECONDS)
    return None


class Growth:
    """Whether a running attempt of `workers` should make way for a larger one."""

    def __init__(
        self,
        runtime: RuntimeSpec,
        workers: int,
        *,
        reserved: int = 0,
        free: FreeResources = free_resources,
    ):
        self._runtime, self._workers, self._reserved, self._free = runtime, workers, reserved, free
        self._looked = time.monotonic()
        self._seen = 0
        self.wanted = 0
        """The number of workers there is room for, once that has been so at two looks in a row; else 0."""

    def look(self) -> bool:
        """Ask the cluster every `runtime.elastic_check_seconds`; whether more workers are wanted."""
        due = time.monotonic() - self._looked >= self._runtime.elastic_check_seconds
        if self.wanted or not due or self._workers >= self._runtime.max_workers:
            return self.wanted > 0
        self._looked = time.monotonic()
        free = places(self._free(), training_demand(self._runtime)) - self._reserved
        room = self._workers + max(0, free)
        more = worker_count(room, self._runtime)
        if more > self._workers and self._seen > self._workers:
            self.wanted = min(more, self._seen)
        self._seen = more
        return self.wanted > 0
