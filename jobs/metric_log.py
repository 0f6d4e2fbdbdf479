"""Training metrics in storage: immutable segments per attempt, no append (design, section 3).

`{step}/metrics/{attempt:06d}-{restart:03d}/{first step:09d}.jsonl` holds one row a logged optimizer step. A segment is
written whole when it is closed: every few seconds, and before every checkpoint, so that what a milestone covers is
always there. Readers take, for each step, the row of the highest (attempt, restart). `values` are deterministic
columns, equal bit for bit between a run and its resumed twin; `timing` is not.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.storage import Storage

SEGMENT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One optimizer step, after it was taken: `step` counts from 1."""

    step: int
    values: dict[str, Any]
    timing: dict[str, float]


class MetricWriter:
    """Collects rows and closes segments. One per restart of the worker group, on rank 0."""

    def __init__(self, storage: Storage, step_key: str, attempt: int):
        self._storage = storage
        self._folder = _claim_folder(storage, f"{step_key}/metrics", attempt)
        self._rows: list[MetricRow] = []
        self._closed_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "ncp-metrics")
        self._writing: Future[None] | None = None

    def add(self, row: MetricRow) -> None:
        """Collect a row; every few seconds a segment is written beside the training. Raises what writing the last one raised."""
        self._rows.append(row)
        if time.monotonic() - self._closed_at > SEGMENT_SECONDS:
            self._begin_segment()

    def close_segment(self) -> None:
        """Write the collected rows as one immutable segment; none when there are no rows. Returns when it is written."""
        self._begin_segment()
        if self._writing is not None:
            self._writing.result()

    def _begin_segment(self) -> None:
        if self._writing is not None:
            self._writing.result()
        if self._rows:
            rows, self._rows = self._rows, []
            self._writing = self._thread.submit(self._write, rows)
        self._closed_at = time.monotonic()

    def _write(self, rows: list[MetricRow]) -> None:
        lines = [
            json.dumps({"step": row.step, "values": row.values, "timing": row.timing}, sort_keys=True)
            for row in rows
        ]
        key = f"{self._folder}/{rows[0].step:09d}.jsonl"
        self._storage.write_bytes(key, ("\n".join(lines) + "\n").encode())


def read_metrics(storage: Storage, step_key: str, *, until: int | None = None) -> list[MetricRow]:
    """All rows of a trajectory in step order, the newest attempt's where several wrote the same step."""
    rows: dict[int, MetricRow] = {}
    for key in storage.keys(f"{step_key}/metrics"):  # sorted: by attempt, then restart, then first step
        if not key.endswith(".jsonl"):
            continue
        for line in storage.read_bytes(key).splitlines():
            record = json.loads(line)
            if until is None or record["step"] <= until:
                rows[record["step"]] = MetricRow(**record)
    return [rows[step] for step in sorted(rows)]


def _claim_folder(storage: Storage, prefix: str, attempt: int) -> str:
    restart = 0
    while not storage.create_json(f"{prefix}/{attempt:06d}-{restart:03d}/start.json", {"at": time.time()}):
        restart += 1
    return f"{prefix}/{attempt:06d}-{restart:03d}"
