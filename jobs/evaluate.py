"""`ncp eval`: suites on any milestones, as the same DAG steps that a run would have named.

So it is idempotent: what was evaluated once - by the run, by a person, on another machine - is found and shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from curriculum.schema import EvaluationSpec, Recipe
from jobs.cluster.preflight import preflight
from jobs.cluster.ray_session import ray_session
from jobs.evaluation.own_data import questions_from
from jobs.evaluation.suites import find_suite
from jobs.graph import build_evaluation
from jobs.launch import retry_policy
from jobs.plan.recipe_sources import pin_source
from jobs.runs.checkpoint_ref import CheckpointRef, find_checkpoint
from jobs.runs.record import read_run
from jobs.runs.stop import signalled, stop_on_signals
from jobs.show.display import RunDisplay
from pipeline.dag.runner import Outcome, run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore, step_store
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One checkpoint, evaluated or not."""

    reference: CheckpointRef
    outcome: Outcome
    receipt: dict[str, Any] | None
    """None when it failed."""


def find_checkpoints(storage: Storage, names: Sequence[str], stage: str | None = None) -> list[CheckpointRef]:
    """The milestones meant by `RUN`, `RUN/STAGE`, `RUN/STAGE@STEP`, or `RUN[/STAGE]@all` for every one there is.

    `stage` is the stage of names that give none. Raises RecipeError naming what does not exist.
    """
    found: list[CheckpointRef] = []
    for name in names:
        run, separator, milestone = name.partition("@")
        if stage is not None and "/" not in run:
            run = f"{run}/{stage}"
        if milestone != "all":
            found.append(find_checkpoint(storage, f"{run}{separator}{milestone}"))
            continue
        newest = find_checkpoint(storage, run)
        store = StepStore(storage, newest.step_key)
        found += [replace(newest, step=step) for step in store.milestones() if step <= newest.step]
    return found


def evaluate_checkpoints(
    storage: Storage,
    references: Sequence[CheckpointRef],
    evaluation: EvaluationSpec,
    *,
    questions: str | None = None,
    actors: int | None = None,
    unsafe_execution: bool = False,
    say: Callable[[str], None] = print,
) -> Iterator[Evaluated]:
    """Each checkpoint in turn; Ray is started for the first that was not evaluated before.

    `questions`: a place to read questions from instead of the published package. Raises SuiteError, SourceError,
    PreflightError, or Stopped.
    """
    for suite in evaluation.suites:
        find_suite(suite)
    started = False
    with contextlib.ExitStack() as session:
        for reference in references:
            recipe, asked = reference.recipe, evaluation
            if questions is not None:
                recipe, asked = questions_from(recipe, evaluation, questions)
            runtime = replace(
                recipe.runtime,
                evaluation_actors=actors or recipe.runtime.evaluation_actors,
                unsafe_execution=unsafe_execution or recipe.runtime.unsafe_execution,
            )
            recipe = replace(
                recipe,
                runtime=runtime,
                stages={
                    name: replace(stage, evaluation=asked) if name == reference.stage else stage
                    for name, stage in recipe.stages.items()
                },
            )
            pins = dict(read_run(storage, reference.run)["pins"])  # as trained, renewed since or not
            if questions is not None:
                pins[asked.data] = pin_source(storage, recipe, asked.data, say)
            steps = build_evaluation(recipe, pins, reference.stage, reference.step, asked)
            store = step_store(storage, steps[-1])
            if store.receipt() is not None:
                outcome = Outcome(done=(steps[-1].name,), failed={}, blocked={})
            else:
                if not started:
                    started = True
                    session.enter_context(ray_session(runtime))
                    session.enter_context(stop_on_signals())
                    preflight(storage, replace(runtime, num_workers=1))
                outcome = _run(storage, steps, recipe, reference.run)
            yield Evaluated(reference=reference, outcome=outcome, receipt=store.receipt())


def _run(storage: Storage, steps: Sequence[Step], recipe: Recipe, run: str) -> Outcome:
    from jobs.steps import executors  # brings pyarrow

    with RunDisplay(storage, len(steps)) as display:
        return run_steps(
            steps,
            storage,
            executors(recipe),
            run=run,
            wanted={steps[-1].name},  # a stage that turns out damaged is not trained here
            on_event=display.on_event,
            retry=retry_policy(recipe.runtime),
            stop_requested=signalled,
        )


def print_result(receipt: dict[str, Any], say: Callable[[str], None]) -> None:
    """Held-out text by source, then the tasks, one line each."""
    result = receipt["result"]
    for source, values in result["heldout"].items():
        measured = values["model"]
        say(
            f"{source:<32} {measured['bits_per_byte']:.4f} bits/byte  {measured['nats_per_token']:.4f} nats/token"
        )
    for label, task in result["tasks"].items():
        value = task.get(task["metric"])
        error = task.get(f"{task['metric']}_stderr")
        shown = "-" if value is None else f"{value:.4f}" + (f" +- {error:.4f}" if error is not None else "")
        counts = {
            "with fewer worked examples": task.get("n_truncated"),
            "skipped: longer than the window": task.get("skipped"),
            "unanswered": task.get("n_unanswered"),
            "not a number": task.get("invalid"),
        }
        said = "".join(f", {count} {what}" for what, count in counts.items() if count)
        seconds = receipt.get("timing", {}).get(label)
        took = f", {seconds:.1f} s" if seconds is not None else ""
        say(f"{label:<32} {shown}  {task['metric']}, n = {task['questions']}{said}{took}")
