"""A notice that the machine will be taken away: SIGTERM to a training worker, or its Ray node being drained.

Whoever lends a machine says so some seconds before: Kubernetes and spot instances by SIGTERM, an autoscaler by draining
the node. Either becomes a request to stop this attempt, written to storage like any other (`jobs.runs.stop`): all workers
end after the same step with a milestone, and the driver tells the runner that it was a preemption, which costs no
retry.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from jobs.cluster.capacity import draining_nodes

DRAIN_POLL_SECONDS = 5.0


class PreemptionNotice:
    """Calls `on_notice` once, from a thread of its own, with the reason. A context manager.

    Ray runs the training loop outside the main thread, where Python allows no signal handler. faulthandler's is a C
    handler that any thread may register: it writes to a pipe, and what it writes does not matter.
    """

    def __init__(self, on_notice: Callable[[str], None]):
        self._on_notice = on_notice
        self._thread = threading.Thread(target=self._watch, name="preemption-notice", daemon=True)

    def __enter__(self) -> PreemptionNotice:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)  # a handler must never wait
        self._end_reads, self._end_writes = os.pipe()
        faulthandler.register(signal.SIGTERM, file=self._writes, all_threads=False, chain=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faulthandler.unregister(signal.SIGTERM)
        os.write(self._end_writes, b"x")
        self._thread.join()
        for end in (self._reads, self._writes, self._end_reads, self._end_writes):
            os.close(end)

    def _watch(self) -> None:
        while True:
            readable, _, _ = select.select([self._reads, self._end_reads], [], [], DRAIN_POLL_SECONDS)
            if self._end_reads in readable:
                return
            reason = "SIGTERM" if readable else _drain()
            if reason:
                self._on_notice(reason)
                select.select([self._end_reads], [], [])  # once is enough
                return


def _drain() -> str:
    """Why this process's Ray node is about to go, or an empty string."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    try:
        drained = ray.get_runtime_context().get_node_id() in draining_nodes()
    except (
        ray.exceptions.RayError
    ) as error:  # a look at the cluster that fails is no notice; the next may succeed
        print(f"could not ask whether this node is being drained: {error}", file=sys.stderr)
        return ""
    return "its node is being drained" if drained else ""
