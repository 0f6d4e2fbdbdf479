"""Reading ahead: one step and no further, in order, with the errors of a step raised at that step."""

from __future__ import annotations

import threading

import pytest

from jobs.training.prefetch import Prefetcher


def test_the_next_batch_is_read_while_this_one_is_used_and_none_beyond_the_stop() -> None:
    loaded: list[int] = []
    next_is_there = threading.Event()

    def load(step: int) -> int:
        loaded.append(step)
        if step == 4:
            next_is_there.set()
        return step * 10

    batches = Prefetcher(load, stop=5)
    assert batches.take(3) == 30
    assert next_is_there.wait(30)  # without anyone asking for it
    assert batches.take(4) == 40
    batches.close()
    assert loaded == [3, 4]


def test_a_step_out_of_order_is_read_anew() -> None:
    batches = Prefetcher(lambda step: step, stop=10)
    assert [batches.take(step) for step in (0, 1, 7, 8, 2)] == [0, 1, 7, 8, 2]
    batches.close()


def test_an_error_is_raised_by_the_step_it_belongs_to() -> None:
    def load(step: int) -> int:
        if step == 1:
            raise OSError("the shard is gone")
        return step

    batches = Prefetcher(load, stop=5)
    assert batches.take(0) == 0
    with pytest.raises(OSError, match="the shard is gone"):
        batches.take(1)
    batches.close()


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    batches = Prefetcher(lambda step: step, stop=100)
    batches.take(0)
    batches.close()
    assert threading.active_count() == before
