"""`ncp plan` and `ncp run`: from a recipe's name to a plan, or to a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe, RuntimeSpec
from jobs.cluster.preflight import cluster_capacity, preflight
from jobs.cluster.preflight_costs import preflight_costs
from jobs.cluster.ray_alive import check_ray, lost_ray
from jobs.cluster.ray_session import ray_session
from jobs.collection import starting
from jobs.gates import accept_gate
from jobs.graph import (
    build_graph,
    evaluates_beside,
    evaluation_sources,
    run_name,
    tokenizer_sources,
    used_sources,
)
from jobs.left_out import left_out_lines
from jobs.monitoring.display import RunDisplay
from jobs.monitoring.notify import Notifier
from jobs.monitoring.run_log import RunLog
from jobs.plan.checks import check_before_work
from jobs.plan.supply import stage_draws
from jobs.runs import check_run_name, record_run, run_records
from jobs.selection import (
    Selection,
    check_only,
    check_selection,
    generation_overrides,
    wanted_steps,
    with_forced,
)
from jobs.stop import (
    StoppedByRequest,
    check_submission,
    run_stop_requested,
    signalled,
    stop_on_signals,
    withdraw_run_stop,
)
from jobs.tokenizer_source import check_published_tokenizer
from jobs.training.checkpoint_fit import check_model
from jobs.training.initial_checkpoint import (
    check_load,
    check_place,
    initial_names,
    load_pinned,
    pin_checkpoint,
)
from pipeline.answers import WORK_SECONDS, set_patience
from pipeline.dag.plan import PlannedStep, make_plan
from pipeline.dag.runner import Outcome, RetryPolicy, Stopped, run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.data.objects import Listings
from pipeline.data.pins import Look, load_pin, look, make_pin
from pipeline.storage import Storage

EVERYTHING = Selection()


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A recipe resolved against a storage."""

    recipe: Recipe
    pins: dict[str, str]
    steps: tuple[Step, ...]
    run: str
    sources: Mapping[str, Look] = field(default_factory=dict)
    """What a plan saw of each source; empty for a run, which says it while it pins."""


def recipe_sources(recipe: Recipe) -> tuple[str, ...]:
    """Sources whose content the run needs: the stages', the tokenizer's, and the evaluations' own questions."""
    extra = tokenizer_sources(recipe) if recipe.tokenizer.train is not None else ()
    return tuple(sorted({*used_sources(recipe), *extra, *evaluation_sources(recipe)}))


def look_at_sources(storage: Storage, recipe: Recipe) -> dict[str, Look]:
    """Every source as its place is now, compared with its pin. Only reads. Raises SourceError for another content."""
    listings = Listings()
    return {
        name: look(
            storage,
            name,
            recipe.sources[name],
            recipe.runtime.locations.get(name),
            text=holds_text(recipe, name),
            listings=listings,
        )
        for name in recipe_sources(recipe)
    }


def holds_text(recipe: Recipe, source: str) -> bool:
    """Whether a source is read as documents, and not as evaluation questions alone."""
    return source not in evaluation_sources(recipe) or source in used_sources(recipe)


def known_pins(storage: Storage, recipe: Recipe) -> dict[str, str]:
    """Digests of the sources that are pinned already, as they were pinned: nothing is listed. Only reads."""
    pins = {}
    for name in recipe_sources(recipe):
        pin = load_pin(storage, name, recipe.sources[name], recipe.runtime.locations.get(name))
        if pin is not None:
            pins[name] = pin.digest
    for name, location in initial_names(recipe).items():
        checkpoint = load_pinned(storage, name, location)
        if checkpoint is None:
            check_place(name, location, recipe.model)
        else:
            if checkpoint.model is not None:
                check_model(name, checkpoint.model, recipe.model)
            pins[name] = checkpoint.digest
    return pins


def pin_sources(storage: Storage, recipe: Recipe, say: Callable[[str], None]) -> dict[str, str]:
    """Digests of all sources: each is listed and compared with its pin, and pinned if it has none yet.

    Raises SourceError for a source that holds other content than its pin says.
    """
    pins = known_pins(storage, recipe)
    listings = Listings()
    for name in recipe_sources(recipe):
        pins[name] = pin_source(storage, recipe, name, say, listings, told=name in pins)
    for name, location in initial_names(recipe).items():
        checkpoint = pin_checkpoint(storage, name, location)
        for stage_name, stage in recipe.stages.items():
            if stage.init.from_ == name:
                check_load(stage_name, stage.init.load, stage.global_batch_tokens, checkpoint)
        if name not in pins:
            say(f"pinned {name}: {checkpoint.kind}, {checkpoint.digest[:12]}")
            pins[name] = checkpoint.digest
    return pins


def check_inputs(storage: Storage, recipe: Recipe) -> None:
    """Raise InputError for what can be looked at before any work: suites, gates, filters, and the tokenizer's file."""
    check_before_work(recipe)
    if recipe.tokenizer.train is None and not StepStore(storage, build_graph(recipe, {})[0].key).receipt():
        check_published_tokenizer(recipe)


def pin_source(
    storage: Storage,
    recipe: Recipe,
    name: str,
    say: Callable[[str], None],
    listings: Listings | None = None,
    *,
    told: bool = False,
) -> str:
    """The digest of one source, pinned or compared. Says what was pinned, and what was left out."""
    spec, location = recipe.sources[name], recipe.runtime.locations.get(name)
    listings = listings or Listings()
    text = holds_text(recipe, name)
    left_out = ()
    if not told:
        left_out = look(storage, name, spec, location, text=text, listings=listings).left_out
    pin = make_pin(storage, name, spec, location, text=text, listings=listings)
    if not told:
        say(f"pinned {name}: {len(pin.files)} files, {pin.size / 1e6:.1f} MB, {pin.digest[:12]}")
    for line in left_out_lines(name, left_out):
        say(line)
    return pin.digest


def retry_policy(runtime: RuntimeSpec) -> RetryPolicy:
    return RetryPolicy(
        infrastructure=runtime.retries,
        preemption=runtime.preemption_retries,
        backoff_seconds=runtime.retry_backoff_seconds,
        backoff_limit_seconds=runtime.retry_backoff_limit_seconds,
    )


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


def prepare_run(
    storage: Storage,
    recipe: Recipe,
    *,
    name: str | None,
    overrides: Sequence[str],
    selection: Selection,
    say: Callable[[str], None],
) -> Planned:
    """Check, pin and record a run, so that only its steps are left. Writes pins and the record, nothing else."""
    check_inputs(storage, recipe)
    if name is not None:
        check_run_name(name)
    known = resolve(recipe, known_pins(storage, recipe)).steps
    check_selection(known, selection)
    stage_draws(storage, recipe, known)
    storage.probe()
    with starting(storage, say):
        pins = pin_sources(storage, recipe, say)
        recipe = with_forced(storage, recipe, pins, selection.force)
        for step in selection.force:
            say(f"{step}: generation {recipe.generations[step]}, computed anew with all that hangs on it")
        planned = resolve(recipe, pins)
        planned = replace(planned, run=name or planned.run)
        check_only(storage, planned.steps, selection)
        kept = [*overrides, *generation_overrides(recipe)] if selection.force else overrides
        record_run(storage, planned.run, recipe, planned.pins, planned.steps, kept)
    return planned


def run_recipe(
    storage: Storage,
    recipe: Recipe,
    *,
    name: str | None,
    overrides: Sequence[str],
    accept: Sequence[str],
    selection: Selection = EVERYTHING,
    say: Callable[[str], None],
) -> tuple[Planned, Outcome]:
    """Prepare the run and bring every step that is not done to completion. Raises Stopped when told to stop."""
    from jobs.steps import executors

    check_accepted(recipe, accept)
    planned = prepare_run(storage, recipe, name=name, overrides=overrides, selection=selection, say=say)
    run, steps, recipe = planned.run, planned.steps, planned.recipe
    wanted = wanted_steps(steps, selection)
    check_submission(storage, run)
    withdraw_run_stop(storage, run)
    for stage in accept:
        accept_gate(storage, run, stage)
    chosen = [row for row in make_plan(steps, storage) if row.step.name in wanted]
    waiting = [row for row in chosen if row.state != "done"]
    left = f"; {len(steps) - len(chosen)} left out" if len(chosen) < len(steps) else ""
    say(f"run {run} in {storage.url}: {len(chosen)} steps, {len(chosen) - len(waiting)} done already{left}")
    set_patience(WORK_SECONDS)
    with (
        RunLog(storage, run) as log,
        RunDisplay(storage, len(chosen), keep=log.add) as display,
        Notifier(storage, run, steps, recipe.runtime.notify, say=display.line) as notifier,
    ):
        if not waiting:
            outcome = run_steps(steps, storage, {}, run=run, on_event=display.on_event, wanted=wanted)
            return planned, outcome
        with ray_session(recipe.runtime), stop_on_signals():
            preflight(storage, recipe.runtime, beside=evaluates_beside(recipe), say=display.line)
            preflight_costs(storage, recipe, say=display.line)
            try:
                outcome = run_steps(
                    steps,
                    storage,
                    executors(recipe),
                    run=run,
                    on_event=display.on_event,
                    retry=retry_policy(recipe.runtime),
                    parallel=recipe.runtime.parallel_steps,
                    capacity=None if recipe.runtime.cluster_grows else cluster_capacity(),
                    wanted=wanted,
                    retry_failed=selection.retry_failed,
                    stop_requested=lambda: (
                        signalled() or bool(lost_ray()) or run_stop_requested(storage, run)
                    ),
                )
            except Stopped as stop:
                check_ray()
                if run_stop_requested(storage, run):
                    raise StoppedByRequest(str(stop)) from stop
                raise
        notifier.ended(outcome)
    return planned, outcome


def check_accepted(recipe: Recipe, accept: Sequence[str]) -> None:
    """Raise RecipeError for an accepted gate of a stage that does not exist."""
    for stage in accept:
        if stage not in recipe.stages:
            raise RecipeError(f"--accept-gate: no stage {stage!r}; {nearest(stage, recipe.stages)}")
