"""How a plan is shown: a table for people, a record for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import first_step, stage_steps, tokens_before
from jobs.plan.cost import Rates, StepCost, total_cost
from jobs.plan.made_with import made_with_lines
from jobs.plan.outlook import raising_tokens, warnings
from jobs.plan.planned import Planned
from jobs.plan.supply import Draw
from jobs.show.source_lines import source_lines, source_records
from ncp_model.flops import adaptation_parameters, flops_per_token, total_parameters
from ncp_model.memory import checkpoint_bytes
from pipeline.dag.plan import PlannedStep
from pipeline.quantities import byte_size


def plan_record(
    planned: Planned,
    rows: list[PlannedStep],
    costs: Mapping[str, StepCost],
    rates: Rates,
    draws: Mapping[str, Mapping[str, Draw]],
    made_with: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The plan as plain values; `made_with` as `made_with_other_software` found it."""
    recipe = planned.recipe
    return {
        "run": planned.run,
        "recipe": recipe.recipe,
        "parameters": total_parameters(recipe.model),
        "adaptation_parameters": adaptation_parameters(recipe.model) if recipe.model.concept.enabled else 0,
        "sources": source_records(planned.sources),
        "stages": {name: stage_record(planned, name, draws[name]) for name in recipe.stages},
        "warnings": warnings(recipe),
        "made_with_other_software": {name: list(differences) for name, differences in made_with.items()},
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
                "needs": list(row.step.needs),
                "after": list(row.step.after),
                "cost": asdict(costs[row.step.name]),
            }
            for row in rows
        ],
        "assumed": asdict(rates),
        "total": asdict(total_cost(costs)),
    }


def stage_record(planned: Planned, name: str, draws: Mapping[str, Draw]) -> dict[str, Any]:
    """Exact integers of one stage: steps, tokens in it, tokens in total, training FLOPs (LM head included), and its mixture."""
    stage = planned.recipe.stages[name]
    per_token = flops_per_token(planned.recipe.model, stage.sequence_length)
    steps = stage_steps(stage) - first_step(planned.recipe, name)
    tokens = steps * stage.global_batch_tokens
    stop_tokens = stage_steps(stage) * stage.global_batch_tokens
    return {
        "steps": steps,
        "tokens": tokens,
        "tokens_total": tokens_before(planned.recipe, name) + stop_tokens,
        "flops": tokens * per_token.total,
        "flops_per_token": per_token.total,
        "flops_per_token_without_lm_head": per_token.total - per_token.lm_head,
        "checkpoint_bytes": checkpoint_bytes(planned.recipe.model, stage.optimizer),
        "mixture": {source: asdict(draw) for source, draw in draws.items()},
        "raising_tokens": raising_tokens(stage),
        "lr": stage.optimizer.lr,
        "schedule": stage.schedule.kind,
    }


def print_plan(
    out: Console,
    planned: Planned,
    rows: list[PlannedStep],
    costs: Mapping[str, StepCost],
    rates: Rates,
    draws: Mapping[str, Mapping[str, Draw]],
    made_with: Mapping[str, Sequence[str]],
) -> None:
    """What the run is, then a row per step with what is left of it, then the sum."""
    recipe = planned.recipe
    adapted = (
        f" ({adaptation_parameters(recipe.model):,} trainable in VQ adaptation)"
        if recipe.model.concept.enabled
        else ""
    )
    out.print(f"run {planned.run}: {total_parameters(recipe.model):,} parameters{adapted}", markup=False)
    for name, stage in recipe.stages.items():
        record = stage_record(planned, name, draws[name])
        start = "its seed" if stage.init.from_ is None else f"{stage.init.from_} ({stage.init.load})"
        out.print(
            f"  {name}: {record['steps']:,} steps x {stage.global_batch_tokens:,} = {record['tokens']:,} tokens "
            f"({record['tokens_total']:,} in total), {record['flops']:.3g} FLOPs, "
            f"LR {stage.optimizer.lr:g} {stage.schedule.kind}, from {start}",
            markup=False,
        )
        for source, draw in draws[name].items():
            out.print(f"    {source}: {_drawn(draw)}", markup=False)
        out.print(f"    {raising_tokens(stage)}", markup=False)
    for line in warnings(recipe):
        out.print(f"warning: {line}", markup=False)
    for line in made_with_lines(made_with):
        out.print(f"note: {line}", markup=False)
    for line in source_lines(planned.sources):
        out.print(f"  {line}", markup=False)
    table = Table()
    priced = rates.gpu_hour_price is not None
    for header in ("step", "fingerprint", "state"):
        table.add_column(header, overflow="fold")
    for header in ("tokens", "steps", "FLOPs", "GPU-h", "storage", *(["money"] if priced else [])):
        table.add_column(header, justify="right", no_wrap=True)
    for header in ("why", "inputs"):
        table.add_column(header, overflow="fold")
    for row in rows:
        milestone = f" @{row.step.milestone}" if row.step.milestone is not None else ""
        fingerprint = row.step.fingerprint[:12] if row.step.known else "-"
        table.add_row(
            f"{row.step.name}{milestone}",
            fingerprint,
            row.state,
            *_cost_cells(costs[row.step.name], priced=priced),
            escape(row.detail),
            _inputs(row.step.needs),
        )
    table.add_section()
    table.add_row("left to do", "", "", *_cost_cells(total_cost(costs), priced=priced), "", "")
    out.print(table)
    out.print(
        f"GPU-hours at {rates.device_flops:.4g} FLOP/s peak and {100 * rates.mfu:g} % MFU; evaluations without their "
        "suites, on at most the tokens shown; storage is what each step keeps, and of what is left only that is summed",
        markup=False,
    )
    for name, stage in recipe.stages.items():
        flops = flops_per_token(recipe.model, stage.sequence_length)
        out.print(
            f"{name}: {flops.total / 1e9:.4g} GFLOPs a token with the LM head, {(flops.total - flops.lm_head) / 1e9:.4g} without, "
            f"{flops.blocks / 1e9:.4g} in the blocks alone, as published tables count (six operations a multiply-accumulate, "
            f"only visible keys); a milestone is {checkpoint_bytes(recipe.model, stage.optimizer):,} bytes{_kept(recipe, stage)}",
            markup=False,
        )


def _kept(recipe: Recipe, stage: StageSpec) -> str:
    """What checkpoints cost in storage: those of the permanent interval, and the newest ones while the stage trains."""
    runtime, one = recipe.runtime, checkpoint_bytes(recipe.model, stage.optimizer)
    every = runtime.permanent_checkpoint_every_steps
    forever = (stage_steps(stage) - 1) // every if every else 0
    newest = runtime.keep_checkpoints
    told = f"; while it trains the newest {newest} stay ({byte_size(newest * one)})"
    return told + (
        f", and for ever one every {every:,} steps: {forever} of them, {byte_size(forever * one)}"
        if forever
        else ""
    )


def _drawn(draw: Draw) -> str:
    """`30.00 %, 240 windows, 0.12 epochs (staged)`."""
    epochs = "epochs unknown until staged"
    if draw.epochs is not None:
        epochs = f"{draw.epochs:.4g} epochs ({'as published' if draw.basis == 'published' else draw.basis})"
    return f"{100 * draw.share:.4g} %, {draw.windows:,} windows, {epochs}"


def _inputs(needs: Sequence[str]) -> str:
    """Names, many shard sets as their number."""
    shards = [name for name in needs if name.startswith("shards-")]
    if len(shards) <= 2:
        return ", ".join(needs)
    return ", ".join([f"{len(shards)} shard sets", *(name for name in needs if name not in shards)])


def _cost_cells(cost: StepCost, *, priced: bool) -> list[str]:
    bound = "<= " if cost.upper_bound and cost.flops else ""
    return [
        "" if cost.tokens is None else f"{bound}{cost.tokens:,}",
        "" if cost.steps is None else f"{cost.steps:,}",
        "" if cost.flops is None else f"{bound}{cost.flops:.3g}",
        ""
        if cost.gpu_hours is None
        else f"{bound}{cost.gpu_hours:,.3g}"
        if cost.gpu_hours < 100
        else f"{bound}{cost.gpu_hours:,.0f}",
        "" if cost.storage_bytes is None else byte_size(cost.storage_bytes),
        *(["" if cost.money is None else f"{bound}{cost.money:,.2f}"] if priced else []),
    ]
