"""Bad lines are kept, with file, line and reason, so that somebody can look at them."""

from __future__ import annotations

import json

from pipeline.records import seal_lines
from pipeline.storage import Storage

MAX_KEPT_BYTES = 16 << 20
"""Line text kept per group; beyond it records go on without the text, so that memory stays bounded."""
MAX_LINE_BYTES = 64 << 10
"""Of one line, only its head is kept."""


class Quarantine:
    """The bad lines of one group."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._kept = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, path: str, line: int, reason: str, detail: str, head: bytes) -> None:
        """Keep one bad line: `head` is its beginning, `reason` the counter it went to."""
        head = head[: max(0, min(MAX_LINE_BYTES, MAX_KEPT_BYTES - self._kept))]
        self._kept += len(head)
        record = {
            "file": path,
            "line": line,
            "reason": reason,
            "detail": detail,
            "head": head.decode(errors="replace"),
        }
        self._records.append(json.dumps(record).encode() + b"\n")

    def write(self, storage: Storage, key: str) -> None:
        storage.write_bytes(key, seal_lines(b"".join(self._records)))
