"""The curves of a trajectory as columns, kept between looks: what is immutable is read once.

A look lists the segments and reads only those that are new, so following a run costs a listing and the newest few
seconds of rows each time, and a page about a finished run costs nothing after the first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.runs.metric_log import MetricRow, read_segment
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

Array = NDArray[np.float64]
REMOTE_READERS = 16
"""Segments that are read at once where every read is a round trip."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows in step order, one a step (the newest attempt's), as equally long arrays; NaN where a row has no value."""

    steps: NDArray[np.int64]
    values: Mapping[str, Array]
    """Numeric columns of `MetricRow.values`, and of `timing` under `timing.{name}`."""

    def until(self, step: int | None) -> Columns:
        """Without what lies beyond `step`."""
        if step is None or not len(self.steps) or self.steps[-1] <= step:
            return self
        count = int(np.searchsorted(self.steps, step, side="right"))
        return Columns(
            steps=self.steps[:count], values={name: column[:count] for name, column in self.values.items()}
        )

    def column(self, name: str) -> Array:
        """A column, all NaN where no row has it."""
        found = self.values.get(name)
        return np.full(len(self.steps), np.nan) if found is None else found


class MetricSeries:
    """One trajectory's rows. Safe to use from several threads."""

    def __init__(self, storage: Storage, step_key: str):
        self._storage = storage
        self._prefix = f"{step_key}/metrics"
        self._segments: dict[str, Columns] = {}
        self._merged = _merge([])
        self.damaged: list[str] = []
        """Keys of segments that are not what was written; their rows are left out."""
        self._lock = threading.Lock()

    def look(self) -> Columns:
        """All rows that are in storage now."""
        with self._lock:
            keys = [key for key in self._storage.keys(self._prefix) if key.endswith(".jsonl")]
            fresh = [key for key in keys if key not in self._segments]
            gone = self._segments.keys() - set(keys)
            for key in gone:
                del self._segments[key]
            self._segments |= self._read(fresh)
            if fresh or gone:
                self._merged = _merge([self._segments[key] for key in keys if key in self._segments])
            return self._merged

    def _read(self, keys: Sequence[str]) -> dict[str, Columns]:
        if self._storage.local:
            found = map(self._read_one, keys)
        else:
            with ThreadPoolExecutor(REMOTE_READERS) as pool:
                found = list(pool.map(self._read_one, keys))
        return {key: columns for key, columns in zip(keys, found, strict=True) if columns is not None}

    def _read_one(self, key: str) -> Columns | None:
        try:
            return _columns(read_segment(self._storage, key))
        except FileNotFoundError:
            return None  # removed since it was listed; the next look finds what took its place
        except DamagedRecord as error:  # kept as empty, so that it is said once
            print(f"shown without a damaged segment: {error}", file=sys.stderr)
            self.damaged.append(key)
            return _columns([])


def _columns(rows: Sequence[MetricRow]) -> Columns:
    flat = [{**row.values, **{f"timing.{name}": value for name, value in row.timing.items()}} for row in rows]
    names = {name for row in flat for name, value in row.items() if isinstance(value, int | float)}
    return Columns(
        steps=np.array([row.step for row in rows], dtype=np.int64),
        values={name: np.array([_number(row.get(name)) for row in flat]) for name in sorted(names)},
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def _merge(segments: Sequence[Columns]) -> Columns:
    """`segments` in the order of their keys: by attempt, restart, first step; for each step the last one's row."""
    steps = np.concatenate([segment.steps for segment in segments] or [np.array([], dtype=np.int64)])
    names = sorted({name for segment in segments for name in segment.values})
    # The last row of each step: the first one of the reversed order.
    unique, reversed_index = np.unique(steps[::-1], return_index=True)
    chosen = len(steps) - 1 - reversed_index
    return Columns(
        steps=unique,
        values={
            name: np.concatenate([segment.column(name) for segment in segments])[chosen] for name in names
        },
    )
