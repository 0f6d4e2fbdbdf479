"""Training metrics in storage: immutable segments per attempt, no append.

`{step}/metrics/{attempt:06d}-{restart:03d}/{first step:09d}.jsonl` holds one row a logged optimizer step. A segment is
written whole when it is closed: every few seconds, and before every checkpoint, so that what a milestone covers is
always there. Its first line holds the digest of the rest. Who decides something by the rows (`read_metrics`) is refused a damaged
segment by name; who only shows them goes on without it and says so. Readers take, for each step, the row of the highest (attempt, restart). `values` are deterministic
columns, equal bit for bit between a run and its resumed twin; `timing` is not.

Who wants the current values reads a tail (`read_tail`): one listing and a segment or two, however long the run is. Who
wants the curves of a living run keeps a `jobs.runs.metric_series.MetricSeries`, which reads every segment once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jobs.runs.metric_values import json_values
from pipeline.claim import claim_number
from pipeline.records import DamagedRecord, seal_lines, unseal_lines
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
            json.dumps(
                {"step": row.step, "values": json_values(row.values), "timing": json_values(row.timing)},
                sort_keys=True,
                allow_nan=False,
            )
            for row in rows
        ]
        key = f"{self._folder}/{rows[0].step:09d}.jsonl"
        self._storage.write_bytes(key, seal_lines(("\n".join(lines) + "\n").encode()))


def read_metrics(storage: Storage, step_key: str, *, until: int | None = None) -> list[MetricRow]:
    """All rows of a trajectory in step order, the newest attempt's where several wrote the same step. Raises DamagedRecord."""
    rows: dict[int, MetricRow] = {}
    for key in storage.keys(f"{step_key}/metrics"):  # sorted: by attempt, then restart, then first step
        if not key.endswith(".jsonl"):
            continue
        for row in read_segment(storage, key):
            if until is None or row.step <= until:
                rows[row.step] = row
    return [rows[step] for step in sorted(rows)]


def read_tail(storage: Storage, step_key: str, *, rows: int = 1) -> list[MetricRow]:
    """The newest `rows` rows of a trajectory, ascending: of the newest attempt, then of the ones before it.

    Segments are read from the newest backwards until there are enough rows, so the cost does not grow with the run. An
    attempt resumes at a milestone, so never before the one before it did, nor beyond what that one reached.
    """
    found: list[MetricRow] = []
    for key in newest_segments(storage, step_key):
        first = found[0].step if found else None
        try:
            segment = read_segment(storage, key)
        except DamagedRecord as error:
            print(f"shown without a damaged segment: {error}", file=sys.stderr)
            continue
        found = [row for row in segment if first is None or row.step < first] + found
        if len(found) >= rows:
            break
    return found[-rows:]


def newest_segments(storage: Storage, step_key: str) -> Iterator[str]:
    """Keys of a trajectory's segments, newest first; a folder is listed only when it is come to."""
    prefix = f"{step_key}/metrics"
    for folder in reversed(storage.children(prefix)):
        for name in reversed(storage.children(f"{prefix}/{folder}")):
            if name.endswith(".jsonl"):
                yield f"{prefix}/{folder}/{name}"


def read_segment(storage: Storage, key: str) -> list[MetricRow]:
    """The rows of one segment. Raises FileNotFoundError, and DamagedRecord naming the segment when it is not what was written."""
    data = unseal_lines(storage.read_bytes(key), storage.uri(key))
    try:
        return [MetricRow(**json.loads(line)) for line in data.splitlines()]
    except (ValueError, TypeError) as error:
        raise DamagedRecord(
            f"{storage.uri(key)}: not a segment of metrics ({error}); it is damaged"
        ) from error


def _claim_folder(storage: Storage, prefix: str, attempt: int) -> str:
    folder = f"{prefix}/{attempt:06d}"
    began = {"at": time.time()}
    restart = claim_number(storage, lambda number: f"{folder}-{number:03d}/start.json", began, first=0)
    return f"{folder}-{restart:03d}"
