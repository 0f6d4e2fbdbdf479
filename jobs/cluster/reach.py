"""Asking a cluster whether it is there, and giving up in time: Ray's own clients wait for minutes, or for ever."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from jobs.cluster.errors import ClusterUnavailable, ConnectionLost

T = TypeVar("T")
REACH_SECONDS = 30.0
"""After so long a service that does not answer counts as unreachable."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 1.0


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises; TimeoutError after `seconds`, when it is left behind in a thread of its own."""
    answers: queue.Queue[tuple[bool, T | BaseException]] = queue.Queue()

    def ask() -> None:
        try:
            answers.put((True, call()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=ask, name="reach", daemon=True).start()
    try:
        good, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, BaseException) and not good:
        raise answer
    return answer  # pyright: ignore[reportReturnType]


def followed(call: Callable[[], T], again: str, *, seconds: float = REACH_SECONDS) -> T:
    """What `call` says of a job that goes on. Asked again while it fails; ConnectionLost after `seconds`.

    `again`: the command that follows the job later.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return within(max(CONNECT_SECONDS, seconds), call)
        except (OSError, RuntimeError) as error:
            if time.monotonic() + RETRY_SECONDS > give_up:
                raise ConnectionLost(
                    f"lost the connection to the job server ({last_line(error)}); the run goes on; follow it again: {again}"
                ) from error
        time.sleep(RETRY_SECONDS)


def check_ray_address(address: str, *, seconds: float = REACH_SECONDS) -> None:
    """Raise ClusterUnavailable unless a Ray cluster answers at `address`, the value of RAY_ADDRESS."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "ray":
        raise ClusterUnavailable(
            f"RAY_ADDRESS: {address!r} is no Ray cluster's address; give HOST:6379 or ray://HOST:10001, "
            f"or submit to a job server: ncp submit --address {address}"
        )
    place = urlsplit(f"//{rest if separator else address}")
    try:
        host, port = place.hostname, place.port
    except ValueError as error:
        raise ClusterUnavailable(f"RAY_ADDRESS: {address!r} has no port ({error}); give HOST:6379") from None
    if host is None or port is None:
        if address in ("auto", "local"):
            return
        raise ClusterUnavailable(f"RAY_ADDRESS: {address!r} has no port; give HOST:6379 or ray://HOST:10001")
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        if not separator:
            within(seconds, lambda: _ask_control_service(f"{host}:{port}"))
    except Exception as error:  # whatever Ray's client raises for a wrong token or a stranger's port
        raise ClusterUnavailable(
            f"RAY_ADDRESS: {address!r} does not answer as a Ray cluster ({last_line(error)}); start it, correct the "
            "address, or give RAY_AUTH_MODE=token and its token; unset RAY_ADDRESS for a local Ray"
        ) from error


def last_line(error: BaseException) -> str:
    """What went wrong, out of a message that may hold a whole traceback of the server's."""
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else type(error).__name__


def _ask_control_service(address: str) -> None:
    """What `ray health-check` asks."""
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

    GcsClient(address=address).internal_kv_get(b"ncp", None)
