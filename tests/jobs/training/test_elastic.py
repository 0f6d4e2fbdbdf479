"""How many workers: what fits, node by node, within the recipe's bounds; and when to make way for more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.schema import RuntimeSpec
from jobs.training.elastic import Growth, choose_workers, worker_count

ELASTIC = RuntimeSpec(num_workers=(1, 4), cpus_per_worker=0.5, elastic_check_seconds=0.0)


def _nodes(*cpus: float) -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": {"CPU": free}} for free in cpus]


@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 8), st.integers(1, 4))
def test_the_number_is_the_largest_that_is_allowed(room: int, least: int, more: int, shard: int) -> None:
    runtime = RuntimeSpec(num_workers=(least * shard, (least + more) * shard), shard_size=shard)
    allowed = [n for n in range(runtime.min_workers, runtime.max_workers + 1) if n <= room and n % shard == 0]
    assert worker_count(room, runtime) == max(allowed, default=0)


def test_a_fixed_number_is_taken_without_a_look_at_the_cluster() -> None:
    assert choose_workers(RuntimeSpec(num_workers=3), free=lambda: pytest.fail("asked")) == 3


def test_all_workers_start_at_once_where_there_is_room_and_fewer_after_a_while() -> None:
    assert choose_workers(ELASTIC, free=lambda: _nodes(64.0)) == 4
    assert choose_workers(ELASTIC, free=lambda: _nodes(0.75, 0.75), settle=0.0) == 2


def test_below_the_minimum_it_waits_and_says_so_until_it_is_told_to_stop() -> None:
    said: list[str] = []
    runtime = replace(ELASTIC, num_workers=(2, 4))
    assert (
        choose_workers(
            runtime, free=lambda: _nodes(0.5), stop=lambda: bool(said), say=said.append, settle=0.0
        )
        is None
    )
    assert said == ["waiting for room: 2 workers are the least, the cluster has room for 1"]


def test_a_cluster_that_grows_is_asked_for_the_minimum_and_room_for_others_is_left() -> None:
    runtime = replace(ELASTIC, num_workers=(2, 4), cluster_grows=True)
    assert choose_workers(runtime, free=lambda: _nodes(0.5), settle=0.0) == 2
    assert choose_workers(ELASTIC, reserved=1, free=lambda: _nodes(2.0), settle=0.0) == 3


def test_more_workers_are_wanted_once_there_was_room_at_two_looks_in_a_row() -> None:
    free = [0.0, 1.0, 0.0, 0.5, 1.0]
    growth = Growth(ELASTIC, 2, free=lambda: _nodes(free.pop(0)))
    assert [growth.look() for _ in range(5)] == [False, False, False, False, True]
    assert growth.wanted == 3 and growth.look()  # and the cluster is not asked again


def test_nothing_more_is_wanted_at_the_maximum() -> None:
    growth = Growth(ELASTIC, 4, free=lambda: pytest.fail("asked"))
    assert not growth.look()
