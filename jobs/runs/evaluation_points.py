"""Which checkpoints a run wants evaluated, and how far that has come: the trigger, in full view.

The policy: a checkpoint is *eligible* once its marker exists (which is written last), and it is evaluated when the
evaluation's receipt exists. Both are asked of storage, so looking twice, from two machines, or after a crash gives the
same answer; the step's lease sees to it that only one evaluates at a time, and the tables of an earlier attempt are kept.
What is wanted is in the run's record: the stop of every stage, the untrained model, and every `evaluation.every_steps`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.runs.record import read_run, run_records
from pipeline.dag.store import StepStore
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """One evaluation that a run names."""

    name: str
    """The step's name."""
    key: str
    stage: str
    milestone: int
    trajectory: str
    """Storage key of the stage's step directory."""
    state: str
    """`done`, `running`, `failed`, `eligible` (its checkpoint is complete) or `waiting` (it is not there yet)."""
    detail: str


def evaluation_points(storage: Storage, run: str) -> list[EvaluationPoint]:
    """Every evaluation of a run, in order. Raises RecipeError for an unknown run."""
    record = read_run(storage, run)
    return [_look(storage, step, trajectory) for step, trajectory in _wanted(record)]


def awaiting_evaluation(storage: Storage, trajectory: str, milestones: Collection[int]) -> set[int]:
    """Those of `milestones` that some run wants evaluated and nobody has: retention leaves them alone."""
    waiting = set()
    for record in run_records(storage):
        for step, of in _wanted(record):
            wanted = step["evaluates"]
            if of["key"] != trajectory or wanted not in milestones or wanted in waiting:
                continue
            if StepStore(storage, step["key"]).receipt() is None:
                waiting.add(wanted)
    return waiting


def _wanted(record: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(evaluation step, the stage's step it measures) of a run's record."""
    steps = {step["name"]: step for step in record["steps"]}
    return [
        (step, steps[name])
        for step in record["steps"]
        if step.get("evaluates") is not None
        for name in step["needs"]
        if steps[name]["kind"] == "stage"
    ]


def _look(storage: Storage, step: Mapping[str, Any], trajectory: Mapping[str, Any]) -> EvaluationPoint:
    store = StepStore(storage, step["key"])
    held, failure = store.held(), store.failure()
    if store.receipt() is not None:
        state, detail = "done", storage.uri(f"{step['key']}/receipt.json")
    elif held is not None:
        state, detail = "running", str(held)
    elif StepStore(storage, trajectory["key"]).milestone(step["evaluates"]) is None:
        state, detail = "waiting", f"no complete milestone at step {step['evaluates']} yet"
    elif failure is not None:
        state, detail = "failed", f"attempt {failure['attempt']}: {failure['error']}"
    else:
        state, detail = "eligible", "its milestone is complete"
    return EvaluationPoint(
        name=step["name"],
        key=step["key"],
        stage=trajectory["name"],
        milestone=step["evaluates"],
        trajectory=trajectory["key"],
        state=state,
        detail=detail,
    )
