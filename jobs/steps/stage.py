"""The `stage` step: one stage's trajectory to its stop, by Ray Train.

Ray Train starts the process group and tells a lost worker from a finished one; the rest is ours. Its own retries are
off: a failed attempt ends, and the DAG's runner starts the next one from the newest milestone, with a budget per class
of error. Its checkpoint record is not used: milestones are found in storage by the workers themselves. Its elasticity is not
used either: the number of workers is chosen at each attempt (`jobs.training.elastic`).
"""

from __future__ import annotations

import time
from typing import Any

from curriculum.schema import Recipe, RuntimeSpec
from curriculum.tokens import root_stage, tokens_before
from jobs.cluster.preflight import training_demand
from jobs.cluster.ray_session import Abandoned, await_remote, submit_remote
from jobs.graph import evaluates_beside
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.runs.gates import accepted_gate, check_gate
from jobs.runs.initial_checkpoint import InitialCheckpoint, initial_names, load_pinned
from jobs.runs.metric_log import read_metrics
from jobs.runs.set_aside import check_marker, set_aside
from jobs.runs.stop import (
    attempt_stop_requested,
    preemption_reason,
    request_attempt_stop,
    run_stop_requested,
    signalled,
)
from jobs.training.elastic import Growth, choose_workers, is_elastic
from jobs.training.train_job import Parent, TrainJob
from jobs.training.transition import write_transition
from pipeline.dag.runner import Preempted, StepContext, Stopped, Undone
from pipeline.dag.store import StepStore
from pipeline.data.manifest import Manifest
from pipeline.data.order import Order, check_supply
from pipeline.storage import Storage

STOP_GRACE_SECONDS = 60.0
"""How long a run that is told to stop waits for the milestone."""


class WorkerLost(RuntimeError):
    """A training worker died or could not be started; the next attempt resumes from the newest milestone."""


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """Train until the step's milestone exists. Raises ValueError for what retrying cannot cure."""
    job = training_job(recipe, context)
    if job.parent is not None and not context.store.milestones():
        require_milestone(recipe, context, job.parent.stage)
        _pass_gate(recipe, context, job.parent)
    _check_supply(context.storage, job)
    write_transition(context.storage, job, context.store.newest_milestone(job.stop_step))
    reserved = 1 if evaluates_beside(recipe) else 0
    workers = choose_workers(
        recipe.runtime,
        reserved=reserved,
        stop=lambda: signalled() or run_stop_requested(context.storage, context.run),
        say=context.report_waiting,
    )
    if workers is None:
        raise Stopped("stopped while waiting for room")
    growth = Growth(recipe.runtime, workers, reserved=reserved)
    task = submit_remote(_fit, job, recipe.runtime, workers)
    try:
        await_remote(
            task,
            patience=lambda: not signalled() and not growth.look(),
            demand=training_demand(recipe.runtime),
            context=context,
        )
    except Abandoned:
        raise
    except Stopped:
        request_attempt_stop(context.storage, job.step_key, job.attempt)
        await_remote(task, patience=_Grace(growth).left)
    except DamagedMilestone as damage:
        if job.parent is None or damage.step_key != job.parent.step_key:
            raise
        raise undone(recipe, context, job.parent.stage, damage) from damage
    except WorkerLost as error:
        _raise_preempted(context.storage, job, error)
        raise
    if not context.store.done(context.step):
        _raise_preempted(context.storage, job, None)
        if attempt_stop_requested(context.storage, job.step_key, job.attempt):
            if growth.wanted and not signalled():
                raise Preempted(f"from {workers} to {growth.wanted} workers, for which there is room now")
            raise Stopped("stopped on request")
    return {}


def require_milestone(recipe: Recipe, context: StepContext, stage: str) -> None:
    """Raise Undone when the milestone at a stage's end is gone or its marker is damaged, which is then set aside."""
    step = context.steps[stage]
    assert step.milestone is not None
    try:
        check_marker(context.storage, step.key, step.milestone)
    except DamagedMilestone as damage:
        raise undone(recipe, context, stage, damage) from damage
    if not StepStore(context.storage, step.key).done(step):
        raise Undone(stage, f"its milestone at step {step.milestone} is gone and is made again")


def undone(recipe: Recipe, context: StepContext, stage: str, damage: DamagedMilestone) -> Undone:
    """Set the damaged milestone at a stage's end aside: the stage goes on from the one before it, then this step begins again."""
    batch = recipe.stages[stage].global_batch_tokens
    told = set_aside(context.storage, damage, batch_tokens=batch, attempt=context.attempt, run=context.run)
    return Undone(stage, told)


class _Grace:
    """How long an attempt that was told to stop may take: as long as it likes to make way for a larger one, and
    STOP_GRACE_SECONDS from when a person or the machine wants it to end."""

    def __init__(self, growth: Growth):
        self._growth = growth
        self._give_up: float | None = None

    def left(self) -> bool:
        if self._growth.wanted and not signalled():
            return True
        if self._give_up is None:
            self._give_up = time.monotonic() + STOP_GRACE_SECONDS
        return time.monotonic() < self._give_up


def _raise_preempted(storage: Storage, job: TrainJob, cause: WorkerLost | None) -> None:
    """Tell the runner that a machine was taken away, if it was: also when it went before the milestone was complete."""
    reason = preemption_reason(storage, job.step_key, job.attempt)
    if reason is not None:
        raise Preempted(f"{reason}; {cause}" if cause else reason) from cause


def training_job(recipe: Recipe, context: StepContext) -> TrainJob:
    """What the workers are told, from the recipe and the steps this one hangs on."""
    name = context.step.name
    stage = recipe.stages[name]
    assert context.step.milestone is not None
    parent = None
    initial = _outside(recipe, context, name)
    if stage.init.from_ is not None and stage.init.from_ in recipe.stages:
        origin = context.steps[stage.init.from_]
        assert origin.milestone is not None
        parent = Parent(stage=origin.name, step_key=origin.key, step=origin.milestone, load=stage.init.load)
    return TrainJob(
        storage_url=context.storage.url,
        step_key=context.step.key,
        attempt=context.attempt,
        run=context.run,
        stage_name=name,
        stage=stage,
        model=recipe.model,
        precision=recipe.precision,
        shards={source: context.steps[f"shards-{source}"].key for source in sorted(stage.mixture)},
        parent=parent,
        initial=initial,
        tokens_before=_tokens_outside(recipe, context, name) + tokens_before(recipe, name),
        stop_step=context.step.milestone,
        runtime=recipe.runtime,
    )


def _outside(recipe: Recipe, context: StepContext, name: str) -> InitialCheckpoint | None:
    """The checkpoint from outside that a stage starts from, as it was pinned."""
    location = initial_names(recipe).get(recipe.stages[name].init.from_ or "")
    if location is None:
        return None
    return load_pinned(context.storage, recipe.stages[name].init.from_ or "", location)


def _tokens_outside(recipe: Recipe, context: StepContext, name: str) -> int:
    """Tokens of the checkpoint from outside that the stage's line began with."""
    root = root_stage(recipe, name)
    initial = _outside(recipe, context, root)
    if initial is None:
        return 0
    goes_on = recipe.stages[root].init.load == "full"
    return initial.tokens_total - (initial.tokens_in_stage if goes_on else 0)


def _pass_gate(recipe: Recipe, context: StepContext, parent: Parent) -> None:
    """Ask the gate of the stage that is left, unless a person accepted it; raises GateRefused or GateBlocked."""
    if accepted_gate(context.storage, context.run, parent.stage) is not None:
        return
    stage = recipe.stages[parent.stage]
    evaluation = context.steps.get(f"{parent.stage}-eval")
    receipt = StepStore(context.storage, evaluation.key).receipt() if evaluation is not None else None
    check_gate(
        parent.stage,
        stage,
        read_metrics(context.storage, parent.step_key, until=parent.step),
        receipt["result"] if receipt is not None else None,
    )


def _check_supply(storage: Storage, job: TrainJob) -> None:
    """Raise ValueError naming the source that holds too little text for the stage."""
    stage = job.stage
    windows = {
        source: Manifest.load(storage, key).windows(stage.sequence_length)
        for source, key in job.shards.items()
    }
    order = Order(windows, stage.mixture, stage.order_block, stage.seed)
    a_step = stage.global_batch_tokens // stage.sequence_length
    drawn = range(job.first_step * a_step, job.stop_step * a_step)
    check_supply(order, drawn, stage.max_repetition, stage.on_shortage)


def _fit(job: TrainJob, runtime: RuntimeSpec, workers: int) -> None:
    """Runs as a Ray task, so that torch is never imported by the driver."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=bool(runtime.gpus_per_worker),
            resources_per_worker=training_demand(runtime).bundle,
        ),
        # gloo beside NCCL: counts, stop requests and markers go between hosts, without waiting for a device.
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if runtime.gpus_per_worker else "gloo"),
        run_config=RunConfig(
            name=f"attempt-{job.attempt:06d}",
            **_kept_by_ray(job),
            failure_config=FailureConfig(
                max_failures=0,
                max_preemption_failures=0,
                controller_failure_limit=0 if is_elastic(runtime) and not runtime.cluster_grows else -1,
            ),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        failures = list(getattr(error, "worker_failures", {}).values())
        for failure in failures:
            cause = getattr(failure, "cause", failure)
            if isinstance(cause, ValueError):
                raise cause from error
        raise WorkerLost("; ".join(str(f).strip().splitlines()[-1] for f in failures) or str(error)) from None


def _kept_by_ray(job: TrainJob) -> dict[str, Any]:
    """Where Ray Train keeps what little it writes: through our filesystem, which waits for a store that is away."""
    storage = Storage(job.storage_url)
    path = storage.path(f"{job.step_key}/ray-train")
    if storage.local:
        return {"storage_path": path}
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return {"storage_path": path, "storage_filesystem": PyFileSystem(FSSpecHandler(storage.fs))}


def _train_worker(config: dict[str, Any]) -> None:
    import torch
    from ray.train.torch import get_device

    from jobs.training.train_loop import train  # brings torch

    if config["job"].device == "cuda":
        torch.cuda.set_device(get_device())
    train(config["job"])
