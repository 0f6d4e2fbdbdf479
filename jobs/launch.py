"""`ncp plan` and `ncp run`: from a recipe's name to a plan, or to a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe, RuntimeSpec
from jobs.cluster.preflight import cluster_capacity, preflight
from jobs.cluster.preflight_costs import preflight_costs
from jobs.cluster.ray_alive import check_ray, lost_ray
from jobs.cluster.ray_session import ray_session
from jobs.graph import (
    evaluates_beside,
)
from jobs.plan.planned import Planned, check_inputs, resolve
from jobs.plan.recipe_sources import known_pins, pin_sources
from jobs.plan.selection import (
    Selection,
    check_only,
    check_selection,
    generation_overrides,
    wanted_steps,
    with_forced,
)
from jobs.plan.supply import stage_draws
from jobs.runs.garbage import starting
from jobs.runs.gates import accept_gate
from jobs.runs.log import RunLog
from jobs.runs.record import check_run_name, record_run
from jobs.runs.stop import (
    StoppedByRequest,
    check_submission,
    run_stop_requested,
    signalled,
    stop_on_signals,
    withdraw_run_stop,
)
from jobs.show.display import RunDisplay
from jobs.show.notify import Notifier
from pipeline.answers import WORK_SECONDS, set_patience
from pipeline.dag.plan import make_plan
from pipeline.dag.runner import Outcome, RetryPolicy, Stopped, run_steps
from pipeline.storage import Storage

EVERYTHING = Selection()


def retry_policy(runtime: RuntimeSpec) -> RetryPolicy:
    return RetryPolicy(
        infrastructure=runtime.retries,
        preemption=runtime.preemption_retries,
        backoff_seconds=runtime.retry_backoff_seconds,
        backoff_limit_seconds=runtime.retry_backoff_limit_seconds,
    )


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
    from jobs.steps import executors  # brings pyarrow

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
