"""What a task asks: all of its questions, or a seeded sample of them. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.evaluation.generative import task_records
from jobs.evaluation.readers import load_requests, read_records
from jobs.evaluation.requests import Request, ranked_groups, sample_questions
from jobs.evaluation.tasks import Task

SAMPLE_SEED = 20251121
"""Draws the questions of a limited evaluation; fixed, so that equal limits ask equal questions for ever."""


def task_requests(task: Task, data: Path, limit: int) -> list[Request]:
    """What is asked for a task scored by log-likelihood: all of its questions, or the seeded sample of `limit`."""
    twins = task.metric == "accuracy_pmi"
    requests = load_requests(data, task.location, gold_only=task.gold_only, unconditional=twins)
    return sample_questions(requests, limit, seed=SAMPLE_SEED, salt=task.label)


def sampled_records(task: Task, data: Path, limit: int) -> list[dict[str, Any]]:
    """The records a generative task is asked: all of them, or the seeded sample of `limit`."""
    if limit <= 0:
        return task_records(task, data)
    groups = {str(record["doc_id"]) for record in read_records(data, task.location.removeprefix("oe:"))}
    chosen = ranked_groups(groups, seed=SAMPLE_SEED, salt=task.label)[:limit]
    return task_records(task, data, [int(group) for group in chosen])
