"""Services that are not there, hang or go away: given up in time, with one line that says what to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from jobs.cluster.errors import ClusterUnavailable, ConnectionLost
from jobs.cluster.reach import check_ray_address, followed, within


@pytest.fixture
def silent() -> Iterator[int]:
    """A server that accepts and never answers: its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("http://127.0.0.1:8265", "ncp submit --address http://127.0.0.1:8265"),
        ("https://head", "ncp submit --address https://head"),
        ("foo", "has no port"),
        ("127.0.0.1:port", "has no port"),
        ("127.0.0.1:99999", "has no port"),
        ("127.0.0.1:1", "does not answer as a Ray cluster"),
        ("ray://127.0.0.1:1", "does not answer as a Ray cluster"),
        ("no-such-host.invalid:6379", "does not answer as a Ray cluster"),
    ],
)
def test_a_ray_address_that_leads_nowhere_is_one_line(address: str, fix: str) -> None:
    with pytest.raises(ClusterUnavailable, match="RAY_ADDRESS: ") as told:
        check_ray_address(address)
    assert address in str(told.value) and fix in str(told.value) and "\n" not in str(told.value)


def test_a_cluster_that_accepts_and_never_answers_is_given_up(silent: int) -> None:
    with pytest.raises(
        ClusterUnavailable, match=r"does not answer as a Ray cluster \(no answer within 0.2 s\)"
    ):
        check_ray_address(f"127.0.0.1:{silent}", seconds=0.2)


def test_what_is_asked_comes_back_or_is_raised_or_is_left_behind() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, threading.Event().wait)


def test_a_server_that_comes_back_is_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.cluster.reach.RETRY_SECONDS", 0.0)
    answers = iter([ConnectionError("away"), RuntimeError("away"), "SUCCEEDED"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert followed(ask, "again") == "SUCCEEDED"


def test_a_server_that_stays_away_is_a_lost_connection_with_the_command_to_follow_again() -> None:
    def ask() -> str:
        raise ConnectionError("a\nrefused")

    begun = time.monotonic()
    with pytest.raises(
        ConnectionLost, match=r"\(refused\); the run goes on; follow it again: ncp logs r --follow"
    ):
        followed(ask, "ncp logs r --follow", seconds=0.0)
    assert time.monotonic() - begun < 5
