"""Whether the local Ray still stands. When its raylet or GCS is gone, nothing can run, and Ray says so late or by killing us.

So a thread looks every second, whoever waits for Ray asks `check_ray`, and a process that is still stuck in Ray a little
later is ended, with the same exit code and the same line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from jobs.exit_codes import UNREACHABLE
from pipeline.dag.runner import Stopped

LOOK_SECONDS = 1.0
LEAVE_SECONDS = 15.0
"""How long a process may take to leave in good order."""
_NEEDED = ("raylet", "gcs_server")


class ClusterLost(Stopped):
    """The local Ray is gone. What is published stays; the same command starts a new one and resumes."""


def lost_ray() -> str:
    """The name of the local Ray's process that is gone, or an empty string; also where Ray was started by somebody else."""
    worker: Any = sys.modules.get("ray._private.worker")
    node = getattr(worker, "_global_node", None)
    if node is None:
        return ""
    return next((str(name) for name, _ in node.dead_processes() if str(name) in _NEEDED), "")


def check_ray() -> None:
    """Raise ClusterLost when the local Ray is gone."""
    name = lost_ray()
    if name:
        raise ClusterLost(f"the local Ray is gone: its {name} was ended (see whether memory ran out)")


@contextlib.contextmanager
def ray_watched() -> Iterator[None]:
    """Within the block, a lost Ray ends the process if the block does not."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(over,), name="ray-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(over: threading.Event) -> None:
    while not over.wait(LOOK_SECONDS):
        name = lost_ray()
        if not name:
            continue
        if over.wait(LEAVE_SECONDS):
            return
        with contextlib.suppress(Exception):
            print(
                f"error: the local Ray is gone: its {name} was ended; run the same command again to resume",
                file=sys.stderr,
                flush=True,
            )
        with contextlib.suppress(Exception):
            from ray._private.worker import _global_node

            if _global_node is not None:
                _global_node.kill_all_processes(check_alive=False, allow_graceful=False)
        os._exit(UNREACHABLE)
