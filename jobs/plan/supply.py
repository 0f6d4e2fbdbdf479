"""How much of each source a stage draws: its share, its windows, and how often that reads the source through.

Exact once a source is staged, from its manifest; before that from its published tokens, where the recipe has them. What cannot
be enough is refused here, before anything is staged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curriculum.errors import RecipeError
from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import first_step, stage_steps
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.data.order import Order
from pipeline.storage import Storage

if TYPE_CHECKING:
    from pipeline.data.manifest import Manifest

_MANY = 2**40
"""Stands for a source's windows where only the number drawn is asked: larger than any number of draws in a block."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What one stage takes of one source until its stop."""

    share: float
    """Of the mixture; the shares of a stage sum to one."""
    windows: int
    """Drawn from the stage's first step until its stop; exact."""
    epochs: float | None
    """Windows drawn by windows there are; None while nobody knows how many there are."""
    basis: str | None
    """What `epochs` rests on: `staged` (counted), `published` (the recipe's `sources.NAME.tokens`), or None."""


def stage_draws(storage: Storage, recipe: Recipe, steps: Sequence[Step]) -> dict[str, dict[str, Draw]]:
    """Stage -> source -> what is drawn. Raises RecipeError for a source that cannot be enough (`max_repetition`)."""
    shards = {step.identity["source"]: step for step in steps if step.kind == "shards"}
    manifests: dict[str, Manifest | None] = {}
    draws: dict[str, dict[str, Draw]] = {}
    for name, stage in recipe.stages.items():
        for source in stage.mixture:
            if source not in manifests:
                manifests[source] = _manifest(storage, shards.get(source))
        draws[name] = _stage(recipe, name, stage, manifests)
    return draws


def _stage(
    recipe: Recipe, name: str, stage: StageSpec, manifests: Mapping[str, Manifest | None]
) -> dict[str, Draw]:
    a_step = stage.global_batch_tokens // stage.sequence_length
    order = Order(dict.fromkeys(stage.mixture, _MANY), stage.mixture, stage.order_block, stage.seed)
    until, before = (order.draws(step * a_step) for step in (stage_steps(stage), first_step(recipe, name)))
    needed = {source: until[source] - before[source] for source in until}
    whole = math.fsum(stage.mixture.values())
    draws = {}
    for source, weight in stage.mixture.items():
        manifest, published = manifests[source], recipe.sources[source].tokens
        if manifest is not None:
            basis, there = "staged", manifest.windows(stage.sequence_length)
        elif published is not None:
            basis, there = "published", published // stage.sequence_length
        else:
            basis, there = None, None
        if (
            there is not None
            and stage.on_shortage == "error"
            and needed[source] > stage.max_repetition * there
        ):
            wrong = f"correct sources.{source}.tokens if that is wrong, " if basis == "published" else ""
            raise RecipeError(
                f"stages.{name}.mixture.{source}: {needed[source]:,} windows are needed, the source holds {there:,} ({basis}) "
                f"and max_repetition is {stage.max_repetition:g}; {wrong}lower its weight or the stage's tokens, raise "
                "max_repetition, or set on_shortage: repeat"
            )
        draws[source] = Draw(
            share=weight / whole,
            windows=needed[source],
            epochs=needed[source] / there if there else None,
            basis=basis if there else None,
        )
    return draws


def _manifest(storage: Storage, step: Step | None) -> Manifest | None:
    from pipeline.data.manifest import Manifest  # brings pyarrow

    if step is None or not step.known or not step_store(storage, step).done(step):
        return None
    return Manifest.load(storage, step.key)
