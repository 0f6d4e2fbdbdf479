"""Token arithmetic: exact integers, never floats (a 6-trillion budget has more digits than a float32 holds)."""

from __future__ import annotations

from curriculum.schema import Recipe, StageSpec


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def stage_steps(stage: StageSpec) -> int:
    """Optimizer steps until the stop: `ceil(tokens / global_batch_tokens)`, as OLMo 3 counts them."""
    return ceil_div(stage.tokens, stage.global_batch_tokens)


def horizon_steps(stage: StageSpec) -> int:
    """Steps over which the LR schedule is laid out."""
    tokens = stage.tokens if stage.horizon_tokens is None else stage.horizon_tokens
    return ceil_div(tokens, stage.global_batch_tokens)


def evaluated_steps(stage: StageSpec) -> range:
    """Steps before the stop whose milestones are evaluated: they are written, and kept until they have been."""
    every = stage.evaluation.every_steps
    return range(every, stage_steps(stage), every) if every else range(0)


def first_step(recipe: Recipe, stage_name: str) -> int:
    """The step a stage begins at: its parent's last when it goes on with the parent's full state, else 0."""
    init = recipe.stages[stage_name].init
    if init.from_ is None or init.load != "full" or init.from_ not in recipe.stages:
        return 0
    return stage_steps(recipe.stages[init.from_])


def tokens_before(recipe: Recipe, stage_name: str) -> int:
    """Tokens consumed by the stages that `stage_name` descends from: what `tokens in total` starts at."""
    init = recipe.stages[stage_name].init
    if init.from_ is None or init.from_ not in recipe.stages:
        return 0
    before = tokens_before(recipe, init.from_)
    if init.load == "full":  # goes on at its parent's step, so that the parent's tokens are its own
        return before
    stage = recipe.stages[init.from_]
    return before + stage_steps(stage) * stage.global_batch_tokens


def root_stage(recipe: Recipe, stage_name: str) -> str:
    """The stage that `stage_name` descends from and that descends from none of the recipe's."""
    parent = recipe.stages[stage_name].init.from_
    return stage_name if parent is None or parent not in recipe.stages else root_stage(recipe, parent)
