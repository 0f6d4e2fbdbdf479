"""The end of a run's log, at a cost that does not grow with the log."""

from __future__ import annotations

from jobs.monitoring.run_log import read_part
from pipeline.storage import Storage

MAX_LINES = 200
MAX_BYTES = 64 * 1024


def log_tail(storage: Storage, run: str, *, lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> str:
    """The newest lines, whole ones, of the newest sessions (`jobs.monitoring.run_log`); empty when nothing was logged yet."""
    prefix, found = f"runs/{run}/log", b""
    for session in reversed(storage.children(prefix)):
        for part in reversed(storage.children(f"{prefix}/{session}")):
            if part.endswith(".txt"):
                found = read_part(storage, f"{prefix}/{session}/{part}") + found
            if len(found) > max_bytes or found.count(b"\n") > lines:
                break
        else:
            continue
        break
    kept = found[-max_bytes:].decode(errors="replace").splitlines()
    if len(found) > max_bytes:
        kept = kept[1:]  # the cut may have gone through a line
    return "".join(f"{line}\n" for line in kept[-lines:])
