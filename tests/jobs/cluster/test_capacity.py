"""Whether the nodes that live could hold the work, and the words for it when they could not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cluster.capacity import Demand, places, shortage


def node(cpu: float = 0.0, gpu: float = 0.0, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes()` has it: a resource that a node has none of is not in it."""
    resources = {name: amount for name, amount in (("CPU", cpu), ("GPU", gpu)) if amount}
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "demand", "held"),
    [
        ([node(cpu=2)], Demand(count=4, cpus=0.5), 4),
        ([node(cpu=0.3)], Demand(count=3, cpus=0.1), 3),
        ([node(cpu=1.5), node(cpu=1.5)], Demand(count=3, cpus=1.0), 2),
        ([node(cpu=64, gpu=8), node(cpu=64)], Demand(count=16, cpus=8, gpus=1), 8),
        ([node(cpu=2, alive=False)], Demand(count=1, cpus=0.5), 0),
        ([node(cpu=1)], Demand(count=5, cpus=0.0), 5),
    ],
)
def test_a_process_needs_all_its_resources_on_one_living_node(
    nodes: list[dict[str, Any]], demand: Demand, held: int
) -> None:
    assert min(places(nodes, demand), demand.count) == min(held, demand.count)
    assert (shortage(nodes, demand) is None) == (held >= demand.count)


def test_what_is_missing_is_said() -> None:
    missing = shortage(
        [node(), node(cpu=8, gpu=1, alive=False), node(cpu=8, gpu=1)], Demand(count=2, cpus=8, gpus=1)
    )
    assert missing == "waiting for a node: 2 x 8 CPU + 1 GPU needed, 2 live nodes have room for 1"


@given(
    st.lists(st.integers(0, 64), max_size=6),
    st.integers(1, 8),
    st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0]),
)
def test_room_never_exceeds_what_the_nodes_have(cpus: list[int], count: int, each: float) -> None:
    nodes = [node(cpu=amount) for amount in cpus]
    assert places(nodes, Demand(count=count, cpus=each)) * each <= sum(cpus) + 1e-6
