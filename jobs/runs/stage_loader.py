"""The loader of a run's stage, as training built it: to ask it afterwards what it gave out."""

from __future__ import annotations

from curriculum.errors import RecipeError, nearest
from curriculum.tokens import stage_steps
from jobs.runs.record import read_run
from jobs.runs.recorded import recorded_recipe
from pipeline.data.loader import WindowLoader
from pipeline.storage import Storage


def stage_loader(storage: Storage, run: str, stage_name: str) -> tuple[WindowLoader, int]:
    """The loader, and the number of steps of the stage. Raises RecipeError for an unknown run or stage."""
    record = read_run(storage, run)
    recipe = recorded_recipe(record)
    if stage_name not in recipe.stages:
        raise RecipeError(
            f"--stage: {stage_name!r} is no stage of {run}; {nearest(stage_name, recipe.stages)}"
        )
    stage = recipe.stages[stage_name]
    keys = {step["name"]: step["key"] for step in record["steps"]}
    loader = WindowLoader(
        storage=storage,
        outputs={source: keys[f"shards-{source}"] for source in sorted(stage.mixture)},
        weights=stage.mixture,
        block=stage.order_block,
        seed=stage.seed,
        sequence_length=stage.sequence_length,
        global_batch_tokens=stage.global_batch_tokens,
    )
    return loader, stage_steps(stage)
