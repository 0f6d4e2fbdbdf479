"""Who holds a lease, and whether that process is certainly gone.

"Gone" is only ever claimed for a process of this boot of this host and of this PID namespace: there, a missing PID, or
the same PID with another start time, is proof. What /proc does not show may be hidden (hidepid) and proves nothing: whether
there is such a PID at all is asked of the kernel. For any other holder the heartbeat decides.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process, named so that it is never confused with another on any machine at any time."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    """Start time in clock ticks since boot, as the kernel gives it."""

    @classmethod
    def here(cls) -> Holder:
        """The calling process."""
        return cls(
            host=socket.gethostname(),
            boot=_read("/proc/sys/kernel/random/boot_id"),
            namespace=_pid_namespace(),
            pid=os.getpid(),
            started=_start_time(os.getpid()) or "",
        )

    def gone(self) -> bool:
        """True only when it is certain that the process no longer runs."""
        if not self.boot or (self.boot, self.namespace) != (
            _read("/proc/sys/kernel/random/boot_id"),
            _pid_namespace(),
        ):
            return False
        stat = _read(f"/proc/{self.pid}/stat")
        if stat:
            return _start_time_of(stat) != self.started
        try:  # a process of another user may be hidden in /proc (hidepid), never from this
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat; None when there is no such process or it is a zombie."""
    return _start_time_of(_read(f"/proc/{pid}/stat"))


def _start_time_of(stat: str) -> str | None:
    fields = stat.rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in ("Z", "X") else fields[19]


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
