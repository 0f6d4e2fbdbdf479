"""The next step's batch, read while this one trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Calls `load(step)` on a thread of its own, one step ahead of `take`, and never for a step at or after `stop`.

    What is loaded is a pure function of the step, so reading ahead changes no batch. An error of `load` is raised by the
    `take` of its step. `waited` adds up the seconds for which `take` had to wait.
    """

    def __init__(self, load: Callable[[int], T], *, stop: int):
        self._load, self._stop = load, stop
        self._thread = ThreadPoolExecutor(1, "ncp-batch")
        self._ahead: tuple[int, Future[T]] | None = None
        self.waited = 0.0

    def take(self, step: int) -> T:
        """The batch of `step`; the one after it is begun."""
        begun = time.monotonic()
        ahead, self._ahead = self._ahead, None
        future = ahead[1] if ahead is not None and ahead[0] == step else self._thread.submit(self._load, step)
        batch = future.result()
        if step + 1 < self._stop:
            self._ahead = (step + 1, self._thread.submit(self._load, step + 1))
        self.waited += time.monotonic() - begun
        return batch

    def close(self) -> None:
        """Drop what was read ahead; returns when the thread is idle."""
        self._thread.shutdown(wait=True, cancel_futures=True)
