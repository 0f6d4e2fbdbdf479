"""How a plan is shown: a table for people, a record for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from curriculum.tokens import stage_steps, tokens_before
from jobs.launch import Planned
from ncp_model.flops import adaptation_parameters, flops_per_token, total_parameters
from pipeline.dag.plan import PlannedStep


def plan_record(planned: Planned, rows: list[PlannedStep]) -> dict[str, Any]:
    """The plan as plain values."""
    recipe = planned.recipe
    return {
        "run": planned.run,
        "recipe": recipe.recipe,
        "parameters": total_parameters(recipe.model),
        "adaptation_parameters": adaptation_parameters(recipe.model) if recipe.model.concept.enabled else 0,
        "stages": {name: stage_record(planned, name) for name in recipe.stages},
        "steps": [
            {
                "name": row.step.name,
                "kind": row.step.kind,
                "fingerprint": row.step.fingerprint,
                "milestone": row.step.milestone,
                "state": row.state,
                "detail": row.detail,
                "resumes_at": row.resumes_at,
                "nearest": row.nearest,
                "differences": [list(difference) for difference in row.differences],
            }
            for row in rows
        ],
    }


def stage_record(planned: Planned, name: str) -> dict[str, Any]:
    """Exact integers of one stage: steps, tokens in it, tokens in total, and training FLOPs."""
    stage = planned.recipe.stages[name]
    steps = stage_steps(stage)
    tokens = steps * stage.global_batch_tokens
    return {
        "steps": steps,
        "tokens": tokens,
        "tokens_total": tokens_before(planned.recipe, name) + tokens,
        "flops": tokens * flops_per_token(planned.recipe.model, stage.sequence_length).total,
        "lr": stage.optimizer.lr,
        "schedule": stage.schedule.kind,
    }


def print_plan(out: Console, planned: Planned, rows: list[PlannedStep]) -> None:
    recipe = planned.recipe
    adapted = (
        f" ({adaptation_parameters(recipe.model):,} trainable in VQ adaptation)"
        if recipe.model.concept.enabled
        else ""
    )
    out.print(f"run {planned.run}: {total_parameters(recipe.model):,} parameters{adapted}", markup=False)
    for name, stage in recipe.stages.items():
        record = stage_record(planned, name)
        start = "its seed" if stage.init.from_ is None else f"{stage.init.from_} ({stage.init.load})"
        out.print(
            f"  {name}: {record['steps']:,} steps x {stage.global_batch_tokens:,} = {record['tokens']:,} tokens "
            f"({record['tokens_total']:,} in total), {record['flops']:.3g} FLOPs, "
            f"LR {stage.optimizer.lr:g} {stage.schedule.kind}, from {start}",
            markup=False,
        )
    table = Table()
    for header in ("step", "fingerprint", "state", "why"):
        table.add_column(header, overflow="fold")
    for row in rows:
        milestone = f" @{row.step.milestone}" if row.step.milestone is not None else ""
        fingerprint = row.step.fingerprint[:12] if row.step.known else "-"
        table.add_row(f"{row.step.name}{milestone}", fingerprint, row.state, row.detail)
    out.print(table)
