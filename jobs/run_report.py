"""A run's report, filled from storage: what jobs.report draws."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from curriculum.load import build
from curriculum.schema import Recipe
from curriculum.tokens import stage_steps, tokens_before
from jobs.evaluation.mixture import mixture_average
from jobs.evaluation_curves import evaluation_curves
from jobs.evaluation_table import TableRow, evaluation_rows
from jobs.metric_log import MetricRow, read_metrics
from jobs.report.model import (
    Alert,
    Curve,
    EvaluationRow,
    RunReport,
    SourceCell,
    StageView,
    StepRow,
    TaskCell,
)
from jobs.runs import read_run
from jobs.status import RunStatus, StepStatus, run_status
from ncp_model.flops import total_parameters
from pipeline.storage import Storage

_CURVES = (
    Curve(key="ntp", title="Next-token loss (NTP)", unit="nats/token", x=(), y=()),
    Curve(key="ncp", title="Next-concept loss (NCP)", unit="MSE/element", x=(), y=()),
    Curve(key="vq", title="Codebook loss (VQ)", unit="MSE/element", x=(), y=()),
    Curve(key="lr", title="Learning rate", smooth=False, x=(), y=()),
    Curve(key="grad_norm", title="Gradient norm", log=True, x=(), y=()),
)


def run_report(storage: Storage, run: str) -> RunReport:
    """Everything the page says about `run`, as far as it has come. Raises RecipeError for an unknown run."""
    record = read_run(storage, run)
    recipe = build(Recipe, record["recipe"], "")
    status = run_status(storage, run)
    by_name = {step.name: step for step in status.steps}
    metrics = {
        name: read_metrics(storage, by_name[name].key, until=stage_steps(stage))
        for name, stage in recipe.stages.items()
    }
    return RunReport(
        name=run,
        recipe=recipe.recipe,
        status=_status_without_report(status),
        created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record["created"])),
        description=recipe.description,
        stages=tuple(_stage_view(recipe, name, by_name[name], metrics[name]) for name in recipe.stages),
        curves=(*_curves(metrics), *evaluation_curves(storage, record)),
        evaluations=_evaluations(storage, record),
        steps=tuple(_step_row(step, record) for step in status.steps),
        alerts=tuple(
            Alert(severity="error", message=f"{step.name}: {step.detail}")
            for step in status.steps
            if step.state == "failed"
        ),
        facts={
            "parameters": f"{total_parameters(recipe.model):,}",
            "overrides": " ".join(record["overrides"]) or "none",
            "workers": f"{recipe.runtime.num_workers}",
        },
    )


def _status_without_report(status: RunStatus) -> str:
    """The run's state as it is once this very page has been written."""
    others = {step.state for step in status.steps if step.kind != "report"}
    return "done" if others == {"done"} else status.state


def _stage_view(recipe: Recipe, name: str, step: StepStatus, metrics: list[MetricRow]) -> StageView:
    stage = recipe.stages[name]
    steps = stage_steps(stage)
    taken = steps if step.state == "done" else max((row.step for row in metrics), default=0)
    origin = stage.init.from_
    return StageView(
        name=name,
        status=step.state,
        tokens_done=taken * stage.global_batch_tokens,
        tokens_budget=steps * stage.global_batch_tokens,
        steps_done=taken,
        steps=steps,
        first_token=tokens_before(recipe, name),
        mixture=stage.mixture,
        note="from its seed" if origin is None else f"from {origin}, {stage.init.load}",
    )


def _curves(metrics: Mapping[str, list[MetricRow]]) -> tuple[Curve, ...]:
    rows = [row for stage in metrics.values() for row in stage]
    x = [float(row.values["tokens_total"]) for row in rows]
    curves = [replace(curve, x=x, y=[row.values[curve.key] for row in rows]) for curve in _CURVES]
    rates = [
        (row.values["tokens_total"] - before) / row.timing["seconds"]
        for row, before in zip(rows, _tokens_before_each(metrics), strict=True)
    ]
    return (*curves, Curve(key="tokens_per_second", title="Throughput", unit="tokens/s", x=x, y=rates))


def _tokens_before_each(metrics: Mapping[str, list[MetricRow]]) -> list[int]:
    """Tokens before the step of each row: a row's own share is its tokens in stage over its step number."""
    return [
        row.values["tokens_total"] - row.values["tokens_in_stage"] // row.step
        for stage in metrics.values()
        for row in stage
    ]


def _evaluations(storage: Storage, record: Mapping[str, Any]) -> tuple[EvaluationRow, ...]:
    """One row a checkpoint under its own stage's mixture; what belongs to no stage comes once for each mixture."""
    stages = record["recipe"]["stages"]
    rows = []
    for row in evaluation_rows(storage, record):
        for mixture in [row.stage] if row.stage is not None else stages:
            rows.append(_evaluation(row, mixture, stages[mixture]["mixture"]))
    return tuple(rows)


def _evaluation(row: TableRow, mixture_name: str, mixture: Mapping[str, float]) -> EvaluationRow:
    heldout = row.result["heldout"]
    averaged = mixture_average(heldout, mixture)
    concept = averaged["concept"] if averaged and row.kind == "model" else None
    codebooks = [values["concept"] for values in heldout.values() if values["concept"]] if concept else []
    return EvaluationRow(
        label=row.label,
        reference=row.reference,
        heldout={
            source: _source_cell(values[row.kind]) for source, values in heldout.items() if values[row.kind]
        },
        mixture_bits_per_byte=averaged[row.kind]["bits_per_byte"]
        if averaged and averaged[row.kind]
        else None,
        mixture=mixture_name,
        ncp_loss=concept["ncp_loss"] if concept else None,
        ncp_r2=concept["ncp_r2"] if concept else None,
        codebook_perplexity=_mean([values["codebook_perplexity"] for values in codebooks]),
        codebook_used=_mean([values["codebook_used"] for values in codebooks]),
        codebook_entries=codebooks[0]["codebook_entries"] if codebooks else None,
        tasks={label: _task_cell(task) for label, task in row.result["tasks"].items()}
        if row.kind == "model"
        else {},
    )


def _source_cell(measured: Mapping[str, Any]) -> SourceCell:
    low, high = measured.get("bits_per_byte_interval") or (None, None)
    return SourceCell(bits_per_byte=measured["bits_per_byte"], low=low, high=high)


def _task_cell(task: Mapping[str, Any]) -> TaskCell:
    """The accuracy that the task is quoted with, if it has one; bits per byte have a column of their own."""
    metric = task["metric"] if task["metric"] != "bits_per_byte" else "accuracy"
    return TaskCell(
        questions=task["questions"],
        accuracy=task.get(metric),
        stderr=task.get(f"{metric}_stderr"),
        chance=task.get("chance"),
        bits_per_byte=task.get("bits_per_byte"),
        metric=metric,
    )


def _step_row(step: StepStatus, record: Mapping[str, Any]) -> StepRow:
    fingerprint = next(item["fingerprint"] for item in record["steps"] if item["name"] == step.name)
    writing = step.kind == "report" and step.state == "running"
    return StepRow(
        name=step.name,
        fingerprint=fingerprint[:12],
        state="done" if writing else step.state,
        seconds=step.seconds,
        attempt=step.attempt,
        note="this page" if writing else step.detail,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
