"""`ncp eval`: a suite on any milestone, as the same DAG step that a run would have named.

So it is idempotent: what was evaluated once - by the run, by a person, on another machine - is found and shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curriculum.schema import EvaluationSpec
from jobs.checkpoint_ref import CheckpointRef
from jobs.display import RunDisplay
from jobs.evaluation.suites import find_suite
from jobs.graph import build_evaluation
from jobs.launch import known_pins, retry_policy
from jobs.preflight import preflight
from jobs.ray_session import ray_session
from jobs.stop import signalled, stop_on_signals
from pipeline.dag.runner import Outcome, run_steps
from pipeline.dag.store import step_store
from pipeline.storage import Storage


def evaluate_checkpoint(
    storage: Storage, reference: CheckpointRef, evaluation: EvaluationSpec
) -> tuple[Outcome, dict[str, Any] | None]:
    """The outcome, and the result once it exists. Raises SuiteError, PreflightError, or Stopped."""
    from jobs.steps import executors

    for suite in evaluation.suites:
        find_suite(suite)
    recipe = reference.recipe
    pins = known_pins(storage, recipe)
    steps = build_evaluation(recipe, pins, reference.stage, reference.step, evaluation)
    wanted = step_store(storage, steps[-1])
    if wanted.receipt() is None:
        with (
            ray_session(recipe.runtime),
            stop_on_signals(),
            RunDisplay(storage, len(steps)) as display,
        ):
            preflight(storage, recipe.runtime)
            outcome = run_steps(
                steps,
                storage,
                executors(recipe),
                run=reference.run,
                on_event=display.on_event,
                retry=retry_policy(recipe.runtime),
                stop_requested=signalled,
            )
    else:
        outcome = Outcome(done=(steps[-1].name,), failed={}, blocked={})
    receipt = wanted.receipt()
    return outcome, receipt["result"] if receipt is not None else None


def print_result(result: dict[str, Any], say: Callable[[str], None]) -> None:
    """Held-out text by source, then the tasks, one line each."""
    for source, values in result["heldout"].items():
        measured = values["model"]
        say(
            f"{source:<32} {measured['bits_per_byte']:.4f} bits/byte  {measured['nats_per_token']:.4f} nats/token"
        )
    for label, task in result["tasks"].items():
        value = task.get(task["metric"])
        error = task.get(f"{task['metric']}_stderr")
        shown = "-" if value is None else f"{value:.4f}" + (f" +- {error:.4f}" if error is not None else "")
        say(f"{label:<32} {shown}  {task['metric']}, n = {task['questions']}")
