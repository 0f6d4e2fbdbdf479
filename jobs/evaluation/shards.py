"""Sharding an evaluation: fixed pieces of a task, scored anywhere, in any order, any number of times.

A shard is a run of whole questions, cut by a fixed size and never by the number of workers; what a worker computes
for it depends on the shard alone. So results are the same bytes for one worker and for many, a lost worker costs the
shards it held, and a shard whose table exists is done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curriculum.errors import InputError
from jobs.evaluation.metrics import TaskMetrics, task_metrics
from jobs.evaluation.pieces import SHARD_QUESTIONS
from jobs.evaluation.requests import Request, requests_digest
from jobs.evaluation.scorer import Score


class ShardMismatch(InputError):
    """Tables that do not add up to the task they claim to be of."""


def plan_shards(requests: Sequence[Request], questions: int = SHARD_QUESTIONS) -> list[list[Request]]:
    """The requests of `questions` questions at a time, in order."""
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    listed = list(groups.values())
    pieces = [listed[start : start + questions] for start in range(0, len(listed), questions)]
    return [[request for group in piece for request in group] for piece in pieces]


def shard_table(requests: Sequence[Request], scores: Sequence[Score | None]) -> dict[str, Any]:
    """A scored shard as JSON values: what was asked (as a digest) and every score."""
    rows = [None if score is None else list(dataclasses.astuple(score)) for score in scores]
    return plain({"requests_sha256": requests_digest(requests), "scores": rows})


def merge_tables(shards: Sequence[Sequence[Request]], tables: Iterable[Mapping[str, Any]]) -> TaskMetrics:
    """Metrics of the whole task from the tables of its shards, given in any order.

    Raises ShardMismatch when a table is missing, foreign, or of other questions than were planned.
    """
    found = {table["requests_sha256"]: table["scores"] for table in tables}
    requests: list[Request] = []
    scores: list[Score | None] = []
    for number, shard in enumerate(shards):
        digest = requests_digest(shard)
        if digest not in found or len(found[digest]) != len(shard):
            raise ShardMismatch(
                f"evaluation: shard {number} of {len(shards)} has no table with its questions; score it again"
            )
        requests.extend(shard)
        scores.extend(None if row is None else _score(row) for row in found[digest])
    return task_metrics(requests, scores)


def plain(value: Any) -> Any:
    """JSON values: tuples become lists, and what is not finite becomes None (JSON has no NaN)."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _score(row: Sequence[Any]) -> Score:
    names = [field.name for field in dataclasses.fields(Score)]
    values = dict(zip(names, row, strict=True))
    if values["log_probability"] is None:  # JSON has no form for what is not finite
        values["log_probability"] = math.nan
    return Score(**values)
