"""The rungs of a ladder recipe as runs of their own, and the scaling laws from those that are done.

A rung is the recipe with another model and another number of tokens: an ordinary run, resumed, shared and reported like any
other, and every rung reads the same shards. What a rung's evaluation says of held-out text, averaged with the stage's
own weights, is its point. Everything here is read from storage; nothing remembers a ladder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from curriculum.errors import RecipeError
from curriculum.schema import Recipe
from curriculum.validate import validate
from jobs.analysis.ladder import Rung, plain_spec, plan_ladder, scaled_spec
from jobs.analysis.scaling import (
    Chinchilla,
    Efficiency,
    LadderPoint,
    PowerLaw,
    ScalingError,
    efficiency,
    fit_chinchilla,
    fit_power_law,
    frontier,
)
from jobs.graph import build_graph, run_name
from jobs.plan.recipe_sources import known_pins
from jobs.runs.mixture import mixture_average
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage

BASELINE, CANDIDATE = "vanilla", "ncp"


@dataclass(frozen=True, kw_only=True)
class RungRun:
    """One rung, and how far its run has come."""

    rung: Rung
    recipe: Recipe
    run: str
    """What its run is called; unknown while a source is not pinned."""
    state: str
    """`done`, `trained` (not evaluated yet), `resumable at step N`, or `to run`."""
    loss: float | None
    """Held-out nats per token under the stage's mixture."""


@dataclass(frozen=True, kw_only=True)
class FamilyLaws:
    """What was fitted to one family."""

    points: tuple[LadderPoint, ...]
    frontier: tuple[LadderPoint, ...]
    power_law: PowerLaw | None
    chinchilla: Chinchilla | None
    missing: str
    """Why a law could not be fitted; empty when all were."""


@dataclass(frozen=True, kw_only=True)
class LadderResult:
    """Laws by family, and how much compute the candidate saves."""

    recipe: str
    families: Mapping[str, FamilyLaws]
    efficiency: Efficiency | None


def ladder_rungs(recipe: Recipe) -> list[tuple[Rung, Recipe]]:
    """Every rung and its recipe, by family, budget and size.

    Raises RecipeError for a recipe without a ladder, and for a ladder whose bounds leave no rung.
    """
    ladder = recipe.ladder
    if ladder is None:
        raise RecipeError(f"scaling: recipe {recipe.recipe!r} has no `ladder:` section; see ladder-cpu")
    name, stage = next(iter(recipe.stages.items()))
    if stage.evaluation.heldout_tokens <= 0:
        raise RecipeError(
            f"stages.{name}.evaluation.heldout_tokens: 0, and a rung's point is its held-out loss; give 262144"
        )
    found = []
    for family, shapes in ladder.families.items():
        base = recipe.model if family == CANDIDATE else plain_spec(recipe.model)
        rungs = plan_ladder(
            family,
            [(scaled_spec(base, shape.hidden_size, shape.layers), shape.lr) for shape in shapes],
            ladder.budgets,
            sequence_length=stage.sequence_length,
            global_batch_tokens=stage.global_batch_tokens,
            tokens_per_parameter=ladder.tokens_per_parameter,
        )
        found += [(rung, _rung_recipe(recipe, name, rung)) for rung in rungs]
    if not found:
        raise RecipeError(
            f"ladder.tokens_per_parameter: {list(ladder.tokens_per_parameter)} leaves no shape at any budget; "
            "widen it, or give other shapes"
        )
    return found


def _rung_recipe(recipe: Recipe, stage_name: str, rung: Rung) -> Recipe:
    stage = recipe.stages[stage_name]
    lr = rung.lr if rung.lr is not None else stage.optimizer.lr
    made = replace(
        recipe,
        recipe=f"{recipe.recipe}-{rung.name}",
        description=f"{rung.family} at {rung.budget:.3g} FLOPs, a rung of {recipe.recipe}",
        model=rung.spec,
        ladder=None,
        stages={
            stage_name: replace(
                stage,
                tokens=rung.tokens,
                horizon_tokens=None,
                optimizer=dataclasses.replace(stage.optimizer, lr=lr),
            )
        },
    )
    validate(made)
    return made


def ladder_runs(storage: Storage, recipe: Recipe) -> list[RungRun]:
    """Every rung as it stands in storage. Raises as `ladder_rungs`."""
    pins = known_pins(storage, recipe)
    return [_look(storage, rung, made, pins) for rung, made in ladder_rungs(recipe)]


def _look(storage: Storage, rung: Rung, recipe: Recipe, pins: Mapping[str, str]) -> RungRun:
    steps = {step.name: step for step in build_graph(recipe, pins)}
    (stage,) = recipe.stages
    loss, state = None, "to run"
    if steps[stage].known:
        loss = _heldout_loss(storage, steps[f"{stage}-eval"], recipe.stages[stage].mixture)
        state = "done" if loss is not None else _training_state(storage, steps[stage])
    return RungRun(rung=rung, recipe=recipe, run=run_name(recipe, pins), state=state, loss=loss)


def _training_state(storage: Storage, step: Step) -> str:
    store = step_store(storage, step)
    assert step.milestone is not None
    newest = store.newest_milestone(step.milestone)
    if store.done(step):
        return "trained"
    return f"resumable at step {newest}" if newest else "to run"


def _heldout_loss(storage: Storage, step: Step, mixture: Mapping[str, float]) -> float | None:
    receipt = step_store(storage, step).receipt()
    if receipt is None:
        return None
    averaged = mixture_average(receipt["result"]["heldout"], mixture)
    return averaged["model"]["nats_per_token"] if averaged and averaged["model"] else None


def fit_ladder(recipe: str, runs: Sequence[RungRun]) -> LadderResult:
    """All laws that the rungs done so far can bear."""
    families = {
        family: _family_laws([run for run in runs if run.rung.family == family])
        for family in dict.fromkeys(run.rung.family for run in runs)
    }
    gain = None
    if all(name in families and families[name].power_law for name in (BASELINE, CANDIDATE)):
        gain = efficiency(families[BASELINE].points, families[CANDIDATE].points)
    return LadderResult(recipe=recipe, families=families, efficiency=gain)


def _family_laws(runs: Sequence[RungRun]) -> FamilyLaws:
    points = tuple(
        LadderPoint(
            budget=run.rung.budget,
            parameters=float(run.rung.parameters),
            tokens=float(run.rung.tokens),
            loss=run.loss,
            label=run.rung.name,
        )
        for run in runs
        if run.loss is not None
    )
    best = tuple(frontier(points))
    missing = []
    power_law = chinchilla = None
    try:
        power_law = fit_power_law(best)
        chinchilla = fit_chinchilla(points)
    except ScalingError as error:
        missing.append(str(error))
    return FamilyLaws(
        points=points,
        frontier=best,
        power_law=power_law,
        chinchilla=chinchilla,
        missing="; ".join(missing),
    )


def ladder_record(result: LadderResult, runs: Sequence[RungRun]) -> dict[str, Any]:
    """Plain values for machines: every point, every law."""
    return {
        "recipe": result.recipe,
        "rungs": [
            {
                "name": run.rung.name,
                "family": run.rung.family,
                "run": run.run,
                "state": run.state,
                "budget": run.rung.budget,
                "flops": run.rung.flops,
                "tokens": run.rung.tokens,
                "parameters": run.rung.parameters,
                "loss": run.loss,
            }
            for run in runs
        ],
        "families": {
            name: {
                "frontier": [dataclasses.asdict(point) for point in laws.frontier],
                "power_law": dataclasses.asdict(laws.power_law) if laws.power_law else None,
                "chinchilla": dataclasses.asdict(laws.chinchilla) if laws.chinchilla else None,
                "missing": laws.missing,
            }
            for name, laws in result.families.items()
        },
        "efficiency": dataclasses.asdict(result.efficiency) if result.efficiency else None,
    }
