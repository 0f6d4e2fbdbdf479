"""Whether a cluster's nodes can hold the work, and saying so while they cannot.

Ray waits in silence for ever for a node that has room. A lost node is replaced in minutes by whoever runs the cluster,
so waiting is right; not saying so is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Demand:
    """`count` processes, each of which needs `cpus` and `gpus` of one node."""

    count: int
    cpus: float
    gpus: float = 0.0

    @property
    def bundle(self) -> dict[str, float]:
        """One process's resources under Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: amount for name, amount in wanted.items() if amount}

    def __str__(self) -> str:
        each = " + ".join(f"{amount:g} {name}" for name, amount in self.bundle.items()) or "nothing"
        return f"{self.count} x {each}"


def open_nodes() -> list[Mapping[str, Any]]:
    """What `ray.nodes()` lists, without the nodes that are being drained: nothing new is placed on those."""
    import ray

    draining = ask_cluster(draining_nodes)
    return [node for node in ray.nodes() if node["NodeID"] not in draining]


def ask_cluster(question: Callable[[], T]) -> T:
    """What `question` returns in a process of the cluster: in this one, or in a task for a driver that is a Ray client
    (`ray://`), which has no access to the cluster's state of its own."""
    import ray
    from ray.util.client import ray as client

    if not client.is_connected():
        return question()
    return ray.get(ray.remote(num_cpus=0)(question).remote())


def draining_nodes() -> set[str]:
    """Ids of the nodes that will be taken away. No public call tells without being a barrier of all training workers
    (`ray.train.get_preemption_info`); this is what Ray Train 2.60 itself asks."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def places(nodes: Iterable[Mapping[str, Any]], demand: Demand) -> int:
    """How many of the demand's processes the living ones of these nodes, as `ray.nodes()` lists them, could hold if they were empty."""
    total = 0
    for node in nodes:
        if not node["Alive"]:
            continue
        rooms = [
            # Ray counts resources in ten-thousandths; so no 0.1 + 0.2 here.
            round(node["Resources"].get(name, 0.0) * 10_000) // round(amount * 10_000)
            for name, amount in demand.bundle.items()
        ]
        total += min(rooms, default=demand.count)
    return total


def shortage(nodes: Iterable[Mapping[str, Any]], demand: Demand) -> str | None:
    """What is missing, for a person; None when nothing is."""
    nodes = list(nodes)
    found = places(nodes, demand)
    if found >= demand.count:
        return None
    alive = sum(bool(node["Alive"]) for node in nodes)
    living = "1 live node has" if alive == 1 else f"{alive} live nodes have"
    return f"waiting for a node: {demand} needed, {living} room for {found}"


class WaitingForNodes:
    """Looks at the cluster every few seconds and tells `say` what is missing, and when nothing is any more."""

    def __init__(self, demand: Demand, say: Callable[[str], None]):
        self._demand, self._say = demand, say
        self._next = time.monotonic() + LOOK_SECONDS
        self._told: str | None = None

    def look(self) -> bool:
        """Whether something is missing. Cheap when called too often."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LOOK_SECONDS
        missing = shortage(open_nodes(), self._demand)
        if missing != self._told:
            self._say(missing or "the cluster is large enough again")
        self._told = missing
        return missing is not None
