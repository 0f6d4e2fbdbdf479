"""A recipe resolved against a storage: its steps, what is done of them, and what can be refused before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from curriculum.schema import Recipe
from jobs.graph import build_graph, run_name
from jobs.plan.checks import check_before_work
from jobs.plan.recipe_sources import known_pins, look_at_sources
from jobs.runs.record import run_records
from jobs.tokenizer_source import check_published_tokenizer
from pipeline.dag.plan import PlannedStep, make_plan
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.data.pins import Look
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A recipe resolved against a storage."""

    recipe: Recipe
    pins: dict[str, str]
    steps: tuple[Step, ...]
    run: str
    sources: Mapping[str, Look] = field(default_factory=dict)
    """What a plan saw of each source; empty for a run, which says it while it pins."""


def check_inputs(storage: Storage, recipe: Recipe) -> None:
    """Raise InputError for what can be looked at before any work: suites, gates, filters, and the tokenizer's file."""
    check_before_work(recipe)
    if recipe.tokenizer.train is None and not StepStore(storage, build_graph(recipe, {})[0].key).receipt():
        check_published_tokenizer(recipe)


def resolve(recipe: Recipe, pins: dict[str, str]) -> Planned:
    return Planned(recipe=recipe, pins=pins, steps=build_graph(recipe, pins), run=run_name(recipe, pins))


def plan_recipe(storage: Storage, recipe: Recipe) -> tuple[Planned, list[PlannedStep]]:
    """The plan, from what is known now and from what each source's place holds. Writes nothing."""
    check_inputs(storage, recipe)
    sources = look_at_sources(storage, recipe)
    pins = {name: seen.pin.digest for name, seen in sources.items() if seen.pin is not None}
    planned = replace(resolve(recipe, {**known_pins(storage, recipe), **pins}), sources=sources)
    return planned, make_plan(planned.steps, storage, comparable=_of_this_recipe(storage, recipe))


def _of_this_recipe(storage: Storage, recipe: Recipe) -> Callable[[Step, str], bool]:
    """Whether a stored step may explain what is new about one of ours. Another recipe's tokenizer explains nothing."""
    own = {
        step["key"]
        for record in run_records(storage)
        if record.get("recipe", {}).get("recipe") == recipe.recipe
        for step in record.get("steps", ())
        if step["kind"] == "tokenizer"
    }
    return lambda step, key: step.kind != "tokenizer" or key in own
