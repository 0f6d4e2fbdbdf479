"""Runs as they lie in storage, made up: the record and the DAG of a real recipe, and curves whose answers are known."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from curriculum.load import load_recipe
from curriculum.schema import Recipe
from curriculum.tokens import stage_steps, tokens_before
from jobs.evaluation.suites import suite_average, suite_tasks
from jobs.graph import build_graph, tokenizer_sources, used_sources
from jobs.runs.record import record_run
from pipeline.dag.holder import Holder
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

Loss = Callable[[int], float]
"""Tokens in the stage -> training loss."""
SEGMENT_ROWS = 100


def store_run(
    storage: Storage,
    name: str,
    *overrides: str,
    recipe: str = "demo",
    losses: Mapping[str, Loss],
    taken: Mapping[str, int] | None = None,
    segment_rows: int = SEGMENT_ROWS,
    evaluations: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Step]:
    """A run of `recipe` whose stages in `losses` have been trained, to their stops or as far as `taken` says.

    `evaluations`: stage -> label of a task -> its quoted value (bits per byte: 2 minus that). Returns the steps by name.
    """
    loaded = load_recipe(recipe, list(overrides))
    sources = {*used_sources(loaded), *(tokenizer_sources(loaded) if loaded.tokenizer.train else ())}
    pins = {source: hashlib.sha256(source.encode()).hexdigest() for source in sources}
    steps = {step.name: step for step in build_graph(loaded, pins)}
    record_run(storage, name, loaded, pins, list(steps.values()), list(overrides))
    for step in steps.values():
        StepStore(storage, step.key).write_identity(step)
        if step.kind in ("tokenizer", "shards"):
            finish(storage, step, name, {})
    for stage, loss in losses.items():
        stop = stage_steps(loaded.stages[stage])
        train(
            storage, loaded, stage, steps[stage], name, loss, stop=(taken or {}).get(stage, stop),
            segment_rows=segment_rows,
        )  # fmt: skip
    for stage, values in (evaluations or {}).items():
        step = steps[f"{stage}-eval"]
        finish(storage, step, name, evaluation(loaded, stage, values))
    return steps


def train(
    storage: Storage,
    recipe: Recipe,
    stage: str,
    step: Step,
    run: str,
    loss: Loss,
    *,
    stop: int,
    segment_rows: int = SEGMENT_ROWS,
) -> None:
    """One attempt of a stage, from its first step to `stop`: metrics, progress, and the milestone if that is the stop."""
    spec = recipe.stages[stage]
    batch, before, store = (
        spec.global_batch_tokens,
        tokens_before(recipe, stage),
        StepStore(storage, step.key),
    )
    lease(storage, step.key, run, alive=False)
    for first in range(1, stop + 1, segment_rows):
        lines = []
        for number in range(first, min(first + segment_rows, stop + 1)):
            values = {
                "tokens_in_stage": number * batch,
                "tokens_total": before + number * batch,
                "ntp": finite(loss(number * batch)),
                "ncp": 0.5,
                "vq": 0.4,
                "lr": spec.optimizer.lr,
                "grad_norm": 0.7,
                "skipped": 0,
                "batch_digest": f"{number:016x}",
            }
            lines.append(json.dumps({"step": number, "values": values, "timing": {"seconds": 0.5}}))
        key = f"{step.key}/metrics/000001-000/{first:09d}.jsonl"
        storage.write_bytes(key, ("\n".join(lines) + "\n").encode())
    progress = {"unit": "tokens", "done": stop * batch, "total": stage_steps(spec) * batch, "step": stop,
                "loss": finite(loss(stop * batch)), "rate": batch / 0.5, "eta_seconds": 0.5 * (stage_steps(spec) - stop)}  # fmt: skip
    store.write_progress(1, progress)
    if stop == stage_steps(spec):
        store.publish_milestone(stop, milestone(spec.global_batch_tokens, before, stage, stop, run))


def finite(value: float) -> float | None:
    """As training writes a loss that is no number."""
    return value if math.isfinite(value) else None


def milestone(batch: int, before: int, stage: str, step: int, run: str) -> dict[str, Any]:
    """A marker as training writes it, without the parts that only a resume reads."""
    return {
        "step": step,
        "stage": stage,
        "tokens_in_stage": step * batch,
        "tokens_total": before + step * batch,
        "files": {".metadata": 1000, "__0_0.distcp": 2_000_000},
        "attempt": 1,
        "run": run,
        "stage_complete": True,
        "world_size": 2,
        "at": time.time(),
    }


def lease(storage: Storage, key: str, run: str, *, alive: bool) -> None:
    """Attempt 1 of a step, held by this very process or by one that is gone."""
    holder = Holder.here().record() if alive else {**Holder.here().record(), "started": "0"}
    record = {"run": run, "holder": holder, "at": time.time() - 60}
    storage.write_json(f"{key}/lease/000001.json", record)


def finish(storage: Storage, step: Step, run: str, result: Mapping[str, Any]) -> None:
    storage.write_json(f"{step.key}/receipt.json", {"attempt": 1, "run": run, "seconds": 3.5, **result})


def evaluation(recipe: Recipe, stage: str, values: Mapping[str, float]) -> dict[str, Any]:
    """The result of an evaluation step: held-out text of every source, and the tasks of the stage's suites."""
    spec = recipe.stages[stage].evaluation
    tasks = {
        task.label: {
            "family": task.family,
            "metric": task.metric,
            "shots": task.shots,
            "requests_sha256": hashlib.sha256(task.label.encode()).hexdigest(),
            "questions": 50,
            "skipped": 0,
            "n_truncated": 0,
            task.metric: values.get(task.label, 0.25),
            f"{task.metric}_stderr": 0.05,
            "chance": 0.25,
            "bits_per_byte": 2 - values.get(task.label, 0.25),
            "bits_per_byte_stderr": 0.02,
        }
        for suite in spec.suites
        for task in suite_tasks(suite)
    }
    heldout = {source: heldout_source(1.5 + index / 10) for index, source in enumerate(used_sources(recipe))}
    return {
        "stage": stage,
        "step": stage_steps(recipe.stages[stage]),
        "result": {
            "heldout": heldout,
            "mixtures": {},
            "tasks": tasks,
            "suites": {suite: suite_average(suite, tasks) for suite in spec.suites},
            "limit": spec.limit,
            "heldout_tokens": spec.heldout_tokens,
            "sequence_length": 256,
            "tokenizer_sha256": "0" * 64,
            "parameters": 1,
        },
    }


def heldout_source(bits: float) -> dict[str, Any]:
    def measured(value: float) -> dict[str, Any]:
        return {
            "bits_per_byte": value,
            "bits_per_byte_interval": [value - 0.1, value + 0.1],
            "nats_per_token": value * 2,
        }

    return {
        "documents": 3,
        "documents_sha256": "1" * 64,
        "tokens": 1000,
        "bytes": 2885,
        "model": measured(bits),
        "zero_concept": measured(bits + 0.2),
        "unigram": measured(bits + 2),
        "concept": {
            "ncp_loss": 0.5, "ncp_r2": 0.4, "ncp_r2_copy": -1.0, "vq_loss": 0.3, "codebook_perplexity": 20.0,
            "codebook_used": 30.0, "codebook_dead": 0.1, "codebook_entries": 32,
        },
    }  # fmt: skip
