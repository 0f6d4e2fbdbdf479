"""What each kind of step does: executors for the DAG's runner, one file a kind."""

from __future__ import annotations

from functools import partial

from curriculum.schema import Recipe
from jobs.steps import cleaning, evaluation, report, shards, stage, tokenizer
from pipeline.dag.runner import Executor


def executors(recipe: Recipe) -> dict[str, Executor]:
    """Kind -> executor, bound to the recipe's runtime half (its identity half is in the steps)."""
    return {
        "tokenizer": partial(tokenizer.execute, recipe),
        "cleaning": partial(cleaning.execute, recipe),
        "shards": partial(shards.execute, recipe),
        "stage": partial(stage.execute, recipe),
        "evaluation": partial(evaluation.execute, recipe),
        "report": partial(report.execute, recipe),
    }
