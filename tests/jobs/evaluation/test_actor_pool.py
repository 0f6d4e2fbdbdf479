"""Actors that are lost, refuse, or never come: real processes and real signals, no model."""

from __future__ import annotations

import os
import signal
import time

import pytest

from jobs.evaluation.actor_pool import ActorLost, ActorPool

pytestmark = pytest.mark.usefixtures("ray_session")


class Squarer:
    """Squares numbers; dies of 13, and of 7 the first time anybody is asked."""

    def __init__(self, folder: str):
        self.folder = folder

    def ready(self) -> int:
        return os.getpid()

    def work(self, number: int) -> int:
        if number == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7:
            try:
                os.close(os.open(f"{self.folder}/seven", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return 49
            os.kill(os.getpid(), signal.SIGKILL)
        if number < 0:
            raise ValueError(f"{number} is negative")
        return number * number


def squares(pool: ActorPool, numbers: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    pool.map("work", numbers, lambda number, answer: found.update({number: answer}))
    return found


def test_a_lost_actor_is_replaced_and_its_piece_done_by_another(tmp_path) -> None:
    with ActorPool(Squarer, str(tmp_path), size=2, num_cpus=0.1) as pool:
        assert squares(pool, [1, 7, 3, 4]) == {1: 1, 7: 49, 3: 9, 4: 16}
        assert pool.lost == 1
        assert pool.call("work", 5) == 25


def test_a_piece_that_every_actor_dies_of_is_named(tmp_path) -> None:
    with (
        ActorPool(Squarer, str(tmp_path), size=1, num_cpus=0.1) as pool,
        pytest.raises(ActorLost, match="3 actors died in turn over: work 13"),
    ):
        squares(pool, [13])


def test_what_a_piece_raises_is_raised_as_it_was(tmp_path) -> None:
    with (
        ActorPool(Squarer, str(tmp_path), size=1, num_cpus=0.1) as pool,
        pytest.raises(ValueError, match="-1 is negative"),
    ):
        squares(pool, [-1])


def test_an_actor_without_room_on_the_cluster_keeps_nobody_waiting(tmp_path) -> None:
    with ActorPool(Squarer, str(tmp_path), size=3, num_cpus=0.9) as pool:
        assert squares(pool, list(range(6))) == {n: n * n for n in range(6)}
        assert len(pool.processes) <= 2


def test_it_ends_when_the_check_says_so(tmp_path) -> None:
    class Enough(Exception):
        pass

    asked = time.monotonic()

    def check() -> None:
        if time.monotonic() - asked > 0.5:
            raise Enough

    with (
        pytest.raises(Enough),
        ActorPool(Squarer, str(tmp_path), size=1, num_cpus=0.1, check=check) as pool,
    ):
        while True:
            pool.call("work", 1)
