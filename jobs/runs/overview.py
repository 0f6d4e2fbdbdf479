"""A run as a person asks for it: how far each stage is, at what loss and rate, when it is done, what went wrong.

Read from storage alone, at a cost that does not grow with the length of the run: of the metrics only the newest
segment is read (`jobs.runs.metric_log.read_tail`). `record()` is what `ncp status --json` prints; docs/monitoring.md lists it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from curriculum.schema import Recipe
from curriculum.tokens import first_step, stage_steps, tokens_before
from jobs.runs.evaluation_table import TableRow, step_rows
from jobs.runs.metric_log import read_tail
from jobs.runs.record import UnreadableRun, all_runs, read_run
from jobs.runs.recorded import reading, recorded_recipe, unknown_keys
from jobs.runs.run_alerts import RunAlert, run_alerts
from jobs.runs.status import RunStatus, StepStatus, recorded_status, unreadable_status
from pipeline.dag.lease import LeaseBook
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class StageStatus:
    """One stage of the curriculum, now."""

    name: str
    state: str
    """As of its step: done, running, failed, stopped or waiting."""
    tokens_done: int
    """Of a running stage: taken so far. Otherwise: kept, that is at its newest milestone."""
    tokens_budget: int
    steps_done: int
    """Of the trajectory: with `load: full` it begins at the parent's last step."""
    steps: int
    first_token: int
    """Tokens of the run before the stage begins."""
    mixture: Mapping[str, float]
    attempts: int
    """Leases ever taken on the trajectory, by any run."""
    restarts: int
    """Times training was started beyond the first: attempts, and restarts of the worker group."""
    milestones: tuple[int, ...]
    """Steps of the complete checkpoints that are kept, within this run's stop."""
    metrics: Mapping[str, Any]
    """The newest row's values: ntp, ncp, vq, lr, grad_norm, tokens_total, ...; empty before the first."""
    metrics_step: int | None
    rate: float | None
    """Tokens per second of the running attempt."""
    eta_seconds: float | None
    """Until the stage's stop, at that rate; None unless it is running."""


@dataclass(frozen=True, kw_only=True)
class EvaluationStatus:
    """One finished evaluation of a checkpoint."""

    name: str
    """untrained, or the stage's name."""
    stage: str | None
    step: int
    bits_per_byte: Mapping[str, float | None]
    """Stage mixture -> held-out bits per byte averaged with its weights."""
    suites: Mapping[str, Mapping[str, float | None]]
    """Suite -> score and bits_per_byte, each the average over families of the average over tasks."""


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """Everything `ncp status RUN` shows."""

    status: RunStatus
    stages: tuple[StageStatus, ...]
    evaluations: tuple[EvaluationStatus, ...]
    alerts: tuple[RunAlert, ...]

    @property
    def tokens_done(self) -> int:
        return sum(stage.tokens_done for stage in self.stages)

    @property
    def tokens_budget(self) -> int:
        return sum(stage.tokens_budget for stage in self.stages)

    @property
    def rate(self) -> float | None:
        """Tokens per second of the stage that is running."""
        return next((stage.rate for stage in self.stages if stage.rate), None)

    @property
    def eta_seconds(self) -> float | None:
        """Training time left at the present rate, evaluations and staging not counted; None while nothing trains."""
        if not self.rate:
            return None
        return (self.tokens_budget - self.tokens_done) / self.rate

    def record(self) -> dict[str, Any]:
        """Plain values for `--json`: the status's own, and what this adds."""
        return {
            **self.status.record(),
            "tokens_done": self.tokens_done,
            "tokens_budget": self.tokens_budget,
            "rate": self.rate,
            "eta_seconds": self.eta_seconds,
            "stages": [asdict(stage) for stage in self.stages],
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "alerts": [asdict(alert) for alert in self.alerts],
        }


def run_overview(storage: Storage, run: str) -> RunOverview:
    """The overview of `run`. Raises UnknownRun for a run that does not exist, DamagedRecord for one that cannot be read."""
    return _overview(storage, read_run(storage, run), run)


def run_overviews(storage: Storage) -> Iterator[RunOverview]:
    """The overviews of all runs, by name; one that cannot be read is marked (`unreadable`) and takes none of the others away."""
    for record in all_runs(storage):
        if isinstance(record, UnreadableRun):
            yield unreadable_overview(record)
        else:
            yield _overview(storage, record, str(record["run"]))


def unreadable_overview(found: UnreadableRun) -> RunOverview:
    """What is left to say of a run whose record cannot be read."""
    alert = RunAlert(severity="error", kind="unreadable", message=found.reason, name=found.run)
    return RunOverview(status=unreadable_status(found), stages=(), evaluations=(), alerts=(alert,))


def _overview(storage: Storage, record: Mapping[str, Any], run: str) -> RunOverview:
    status = recorded_status(storage, record, run)
    by_name = {step.name: step for step in status.steps}
    notes = _of_another_version(run, unknown_keys(record))
    recipe: Recipe | None = None
    stages: list[StageStatus] = []
    try:
        recipe = recorded_recipe(record) if "stages" in record["recipe"] else None
    except DamagedRecord as error:
        notes.append(RunAlert(severity="warning", kind="unreadable", message=str(error), name=run))
    for name in recipe.stages if recipe else ():
        try:
            assert recipe is not None
            with reading(f"stage {name} of run {run!r}"):
                stages.append(stage_status(storage, recipe, name, by_name[name]))
        except DamagedRecord as error:
            notes.append(RunAlert(severity="error", kind="unreadable", message=str(error), name=name))
    return RunOverview(
        status=status,
        stages=tuple(stages),
        evaluations=_evaluations(storage, record, notes) if recipe else (),
        alerts=(*run_alerts(storage, status.steps), *notes),
    )


def _of_another_version(run: str, unknown: list[str]) -> list[RunAlert]:
    if not unknown:
        return []
    message = f"recorded by another version of ncp; unknown here and left out: {', '.join(unknown)}"
    return [RunAlert(severity="info", kind="unknown_keys", message=message, name=run)]


def stage_status(storage: Storage, recipe: Recipe, name: str, step: StepStatus) -> StageStatus:
    """The state of one stage, from its step's and the newest of its metrics."""
    stage, store = recipe.stages[name], StepStore(storage, step.key)
    steps, begun = stage_steps(stage), first_step(recipe, name)
    started = step.state != "waiting"
    milestones = [number for number in store.milestones() if number <= steps] if started else []
    progress = step.progress if step.state == "running" and step.progress else {}
    taken = steps if step.state == "done" else max([progress.get("step", 0), *milestones])
    tail = read_tail(storage, step.key) if started else []
    rate = progress.get("rate")
    return StageStatus(
        name=name,
        state=step.state,
        tokens_done=max(min(taken, steps) - begun, 0) * stage.global_batch_tokens,
        tokens_budget=(steps - begun) * stage.global_batch_tokens,
        steps_done=min(taken, steps),
        steps=steps,
        first_token=tokens_before(recipe, name) + begun * stage.global_batch_tokens,
        mixture=stage.mixture,
        attempts=LeaseBook(storage, step.key).highest() if started else 0,
        restarts=max(0, len(storage.children(f"{step.key}/metrics")) - 1) if started else 0,
        milestones=tuple(milestones),
        metrics=tail[-1].values if tail else {},
        metrics_step=tail[-1].step if tail else None,
        rate=rate,
        eta_seconds=(steps - min(taken, steps)) * stage.global_batch_tokens / rate if rate else None,
    )


def _evaluations(
    storage: Storage, record: Mapping[str, Any], notes: list[RunAlert]
) -> tuple[EvaluationStatus, ...]:
    """The finished evaluations; what cannot be read of them is added to `notes`."""
    rows: list[TableRow] = []
    for step in record["steps"]:
        if step["kind"] != "evaluation":
            continue
        try:
            with reading(f"evaluation {step['name']}"):
                rows += step_rows(storage, record, step)
        except DamagedRecord as error:
            notes.append(RunAlert(severity="error", kind="unreadable", message=str(error), name=step["name"]))
    return tuple(
        EvaluationStatus(
            name=row.label,
            stage=row.stage,
            step=row.step,
            bits_per_byte=row.mixtures,
            suites=row.result.get("suites", {}),
        )
        for row in rows
        if row.kind == "model"
    )
