"""What a plan says in words: what raising a stage's tokens would do, and what looks unmeant in its learning rate."""

from __future__ import annotations

from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import ceil_div, horizon_steps, stage_steps


def raising_tokens(stage: StageSpec) -> str:
    """`continues` or `starts anew`, and why: the schedule's horizon is part of what a trajectory is."""
    if stage.horizon_tokens is None:
        return (
            "raising tokens starts a new trajectory from its first step, because the learning rate ends at tokens; "
            "set horizon_tokens before the first run to be able to continue"
        )
    return (
        f"raising tokens continues this trajectory as long as horizon_tokens stays {stage.horizon_tokens:,}, "
        "where its learning rate ends"
    )


def steps_without_rate(stage: StageSpec) -> int:
    """Steps before the stop whose learning rate is 0, but for the one that ends the schedule."""
    schedule = stage.schedule
    if schedule.kind == "constant" or schedule.final_ratio > 0:
        return 0
    end = horizon_steps(stage)
    if schedule.half_horizon_tokens is not None:
        end = ceil_div(schedule.half_horizon_tokens, stage.global_batch_tokens)
    at_zero = stage_steps(stage) - max(end, schedule.warmup_steps + 1) + 1
    return at_zero if at_zero > 1 else 0


def warnings(recipe: Recipe) -> list[str]:
    """One line each, naming the keys."""
    lines = []
    for name, stage in recipe.stages.items():
        steps, idle = stage_steps(stage), steps_without_rate(stage)
        if idle:
            lines.append(
                f"stages.{name}.horizon_tokens: the learning rate is 0 on {idle:,} of {steps:,} steps before the stop, where "
                "nothing is learned; raise horizon_tokens or schedule.final_ratio, or lower tokens"
            )
        if stage.schedule.warmup_steps > steps:
            lines.append(
                f"stages.{name}.schedule.warmup_steps: the stage stops at step {steps:,}, inside its warm-up of "
                f"{stage.schedule.warmup_steps:,} steps"
            )
    return lines
