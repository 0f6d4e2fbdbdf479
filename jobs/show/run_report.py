"""A run's report, filled from storage: what jobs.show.report draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import first_step, stage_steps
from jobs.evaluation.suites import suite_stderr
from jobs.runs.evaluation_table import TableRow, evaluation_rows
from jobs.runs.log import log_tail
from jobs.runs.metric_series import Columns, MetricSeries
from jobs.runs.mixture import mixture_average
from jobs.runs.overview import RunOverview, StageStatus, run_overview
from jobs.runs.record import read_run
from jobs.runs.recorded import recorded_recipe
from jobs.runs.run_alerts import RunAlert
from jobs.runs.status import RunStatus, StepStatus
from jobs.show.evaluation_curves import evaluation_curves
from jobs.show.report.model import (
    Alert,
    CheckpointRow,
    Curve,
    EvaluationRow,
    RunReport,
    SourceCell,
    StageView,
    StepRow,
    SuiteCell,
    TaskCell,
)
from ncp_model.flops import flops_per_token, total_parameters
from pipeline.dag.store import StepStore
from pipeline.quantities import duration, number, si, utc_text
from pipeline.storage import Storage

CHECKPOINTS = 8
"""Milestones of a stage that a page lists, the newest ones."""

_CURVES = (
    Curve(key="ntp", title="Next-token loss (NTP)", unit="nats/token", x=(), y=()),
    Curve(key="ncp", title="Next-concept loss (NCP)", unit="MSE/element", x=(), y=()),
    Curve(key="vq", title="Codebook loss (VQ)", unit="MSE/element", x=(), y=()),
    Curve(key="lr", title="Learning rate", smooth=False, x=(), y=()),
    Curve(key="grad_norm", title="Gradient norm", log=True, x=(), y=()),
)


def run_report(storage: Storage, run: str, *, columns: Callable[[str], Columns] | None = None) -> RunReport:
    """Everything the page says about `run`, as far as it has come. Raises RecipeError for an unknown run.

    `columns`: trajectory -> its metrics, for a caller who keeps them between calls; by default they are read anew.
    """
    record = read_run(storage, run)
    recipe = recorded_recipe(record)
    overview = run_overview(storage, run)
    look = columns or (lambda key: MetricSeries(storage, key).look())
    keys = {step.name: step.key for step in overview.status.steps}
    metrics = {name: look(keys[name]).until(stage_steps(stage)) for name, stage in recipe.stages.items()}
    return RunReport(
        name=run,
        recipe=recipe.recipe,
        status=_status_without_report(overview.status),
        created=utc_text(record["created"]),
        description=recipe.description,
        stages=tuple(_stage_view(recipe, stage) for stage in overview.stages),
        curves=(*_curves(recipe, metrics), *evaluation_curves(storage, record)),
        evaluations=_evaluations(storage, record),
        steps=tuple(_step_row(step, record) for step in overview.status.steps),
        checkpoints=_checkpoints(storage, overview, keys),
        log=log_tail(storage, run),
        rate=overview.rate,
        eta="" if overview.eta_seconds is None else duration(overview.eta_seconds),
        alerts=tuple(map(_alert, overview.alerts)),
        facts={
            "parameters": f"{total_parameters(recipe.model):,}",
            "overrides": " ".join(record["overrides"]) or "none",
            "workers": f"{recipe.runtime.num_workers}",
            "restarts": f"{sum(stage.restarts for stage in overview.stages)}",
            "training FLOPs planned": number(sum(stage_flops(recipe, name) for name in recipe.stages), 3),
        },
        config=record["recipe"],
    )


def stage_flops(recipe: Recipe, name: str) -> float:
    """Training FLOPs of one stage from its first step to its stop."""
    stage = recipe.stages[name]
    tokens = (stage_steps(stage) - first_step(recipe, name)) * stage.global_batch_tokens
    return tokens * flops_per_token(recipe.model, stage.sequence_length).total


def flops_before(recipe: Recipe, name: str) -> float:
    """Training FLOPs of the stages that `name` descends from, as `curriculum.tokens.tokens_before` counts their tokens."""
    init = recipe.stages[name].init
    if init.from_ is None or init.from_ not in recipe.stages:
        return 0.0
    before = flops_before(recipe, init.from_)
    return before if init.load == "full" else before + stage_flops(recipe, init.from_)


def _status_without_report(status: RunStatus) -> str:
    """The run's state as it is once this very page has been written."""
    others = {step.state for step in status.steps if step.kind != "report"}
    return "done" if others == {"done"} else status.state


def _stage_view(recipe: Recipe, status: StageStatus) -> StageView:
    stage = recipe.stages[status.name]
    origin = stage.init.from_
    return StageView(
        name=status.name,
        status=status.state,
        tokens_done=status.tokens_done,
        tokens_budget=status.tokens_budget,
        steps_done=status.steps_done,
        steps=status.steps,
        first_token=status.first_token,
        mixture=status.mixture,
        note="from its seed" if origin is None else f"from {origin}, {stage.init.load}",
        now=_now(status),
        settings=_settings(recipe, status.name, stage),
    )


def _now(status: StageStatus) -> str:
    """`loss 4.213, 8,912 tokens/s, ETA 0:46, 2 restarts`, as far as it is known."""
    parts = []
    if status.metrics.get("ntp") is not None:
        parts.append(f"loss {number(status.metrics['ntp'], 4)}")
    if status.rate is not None:
        parts.append(f"{status.rate:,.0f} tokens/s")
    if status.eta_seconds is not None:
        parts.append(f"ETA {duration(status.eta_seconds)}")
    if status.restarts:
        parts.append(f"{status.restarts} restart{'s' if status.restarts > 1 else ''}")
    return ", ".join(parts)


def _settings(recipe: Recipe, name: str, stage: StageSpec) -> dict[str, str]:
    return {
        "sequence": f"{stage.sequence_length:,}",
        "batch": f"{si(stage.global_batch_tokens)} tokens",
        "LR": f"{stage.optimizer.lr:g} {stage.schedule.kind}",
        "seed": str(stage.seed),
        "FLOPs": number(stage_flops(recipe, name), 3),
    }


def _curves(recipe: Recipe, metrics: Mapping[str, Columns]) -> tuple[Curve, ...]:
    """The stages' curves, one after the other."""
    shown = {name: columns for name, columns in metrics.items() if len(columns.steps)}
    if not shown:
        return ()

    def joined(name: str) -> np.ndarray:
        return np.concatenate([columns.column(name) for columns in shown.values()])

    x = joined("tokens_total")
    flops = np.concatenate(
        [
            flops_before(recipe, name)
            + columns.column("tokens_in_stage")
            * flops_per_token(recipe.model, recipe.stages[name].sequence_length).total
            for name, columns in shown.items()
        ]
    )
    curves = [replace(curve, x=x, y=joined(curve.key), flops=flops) for curve in _CURVES]
    rate = np.concatenate(
        [
            recipe.stages[name].global_batch_tokens / columns.column("timing.seconds")
            for name, columns in shown.items()
        ]
    )
    throughput = Curve(key="tokens_per_second", title="Throughput", unit="tokens/s", x=x, y=rate, flops=flops)
    return tuple(curve for curve in (*curves, throughput) if np.isfinite(np.asarray(curve.y)).any())


def _checkpoints(
    storage: Storage, overview: RunOverview, keys: Mapping[str, str]
) -> tuple[CheckpointRow, ...]:
    rows = []
    for stage in reversed(overview.stages):
        store = StepStore(storage, keys[stage.name])
        for step in sorted(stage.milestones, reverse=True)[:CHECKPOINTS]:
            marker = store.milestone(step)
            if marker is not None:
                rows.append(_checkpoint(stage, step, marker))
    return tuple(rows)


def _checkpoint(stage: StageStatus, step: int, marker: Mapping[str, Any]) -> CheckpointRow:
    sizes = [size for size in marker.get("files", {}).values() if isinstance(size, int)]
    ended = ["end of the stage"] if step == stage.steps else []
    wrote = [f"written by run {marker['run']}"] if "run" in marker else []
    return CheckpointRow(
        stage=stage.name,
        step=step,
        tokens_total=marker.get("tokens_total", 0),
        size=sum(sizes) if sizes else None,
        at=utc_text(marker["at"]) if "at" in marker else "",
        attempt=marker.get("attempt"),
        note=", ".join(ended + wrote),
    )


def _alert(alert: RunAlert) -> Alert:
    where = f" at step {alert.step:,}" if alert.step is not None else ""
    return Alert(
        severity=alert.severity,
        message=f"{alert.name}{where}: {alert.message}",
        when="" if alert.at is None else utc_text(alert.at),
    )


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
        suites=_suites(row.result) if row.kind == "model" else {},
    )


def _suites(result: Mapping[str, Any]) -> dict[str, SuiteCell]:
    return {
        name: SuiteCell(
            score=average["score"],
            score_stderr=suite_stderr(name, result["tasks"], "score"),
            bits_per_byte=average["bits_per_byte"],
            bits_per_byte_stderr=suite_stderr(name, result["tasks"], "bits_per_byte"),
        )
        for name, average in result.get("suites", {}).items()
    }


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
        n_truncated=task.get("n_truncated", 0),
        skipped=task.get("skipped", 0),
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
        needs=step.needs,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
