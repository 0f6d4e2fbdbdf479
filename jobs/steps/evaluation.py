"""The `evaluation` step: one milestone, its held-out text and its suites, cut into pieces for Ray actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from curriculum.schema import EvaluationSpec, Recipe, RuntimeSpec
from jobs.cluster.capacity import Demand, WaitingForNodes
from jobs.evaluation.actor_pool import ActorPool
from jobs.evaluation.job import EvaluationData, EvaluationJob
from jobs.evaluation.pieces import Piece
from jobs.evaluation.worker import EvaluationWorker
from jobs.graph import evaluation_actors
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.runs.retention import pinned
from jobs.runs.stop import attempt_stop_requested, signalled
from jobs.steps.stage import require_milestone, undone
from jobs.steps.tokenizer import tokenizer_key
from pipeline.dag.lease import Superseded
from pipeline.dag.runner import StepContext, Stopped
from pipeline.storage import Storage

LEASE_SECONDS = 5.0
"""How often it is asked whether the step is still ours, and still wanted."""


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """The receipt holds the whole result: it is small, and its existence means it is complete."""

    runtime = recipe.runtime
    demand = Demand(count=1, cpus=runtime.cpus_per_worker, gpus=runtime.gpus_per_worker)
    nodes = WaitingForNodes(demand, context.report_waiting)
    looked = time.monotonic()

    def check() -> None:
        nonlocal looked
        nodes.look()
        if signalled():
            raise Stopped("stopped while an evaluation was running")
        if time.monotonic() - looked < LEASE_SECONDS:
            return
        looked = time.monotonic()
        if attempt_stop_requested(context.storage, context.step.key, context.attempt):
            raise Stopped("stopped on request")
        if not context.is_current():
            raise Superseded(f"attempt {context.attempt} of {context.step.key}: superseded while evaluating")

    job = evaluation_job(recipe, context)
    actors = evaluation_actors(recipe, recipe.stages[job.stage].evaluation)
    final = job.step == context.steps[job.stage].milestone
    if final:
        require_milestone(recipe, context, job.stage)
    try:
        with pinned(
            context.storage, job.trajectory, job.step, "evaluation"
        ):  # training may prune beside this
            return evaluate_sharded(
                job,
                replace(runtime, evaluation_actors=actors),
                check=check,
                report=lambda progress: context.store.write_progress(context.attempt, progress),
            )
    except DamagedMilestone as damage:
        if not final:
            raise
        raise undone(recipe, context, job.stage, damage) from damage


def evaluation_job(recipe: Recipe, context: StepContext) -> EvaluationJob:
    """What the actors are told, from the step's identity and the steps it is computed from."""
    identity = context.step.identity
    trained = next(step for step in context.steps.values() if step.fingerprint == identity["trajectory"])
    shards = {source: context.steps[f"shards-{source}"] for source in identity["heldout"]}
    data = None
    if "data" in identity:
        source = identity["data"]["source"]
        data = EvaluationData(
            source=source,
            spec=recipe.sources[source],
            location=recipe.runtime.locations.get(source),
            digest=identity["data"]["content"],
        )
    return EvaluationJob(
        storage_url=context.storage.url,
        trajectory=trained.key,
        fingerprint=trained.fingerprint,
        stage=trained.name,
        step=identity["step"],
        model=recipe.model,
        spec=EvaluationSpec(
            suites=tuple(identity["suites"]),
            limit=identity["limit"],
            heldout_tokens=identity["heldout_tokens"],
        ),
        sequence_length=identity["sequence_length"],
        heldout={source: (step.key, step.fingerprint) for source, step in shards.items()},
        tokenizer=tokenizer_key(context),
        attempt=context.attempt,
        data=data,
        threads=recipe.runtime.threads_per_worker,
        device="cuda" if recipe.runtime.gpus_per_worker else "cpu",
        unsafe_execution=recipe.runtime.unsafe_execution,
    )


def evaluate_sharded(
    job: EvaluationJob,
    runtime: RuntimeSpec,
    *,
    check: Callable[[], None] = lambda: None,
    report: Callable[[dict[str, Any]], None] = lambda progress: None,
) -> dict[str, Any]:
    """Answer every piece that has no table yet, and put all together. Raises what a piece raises, or ActorLost."""
    storage = Storage(job.storage_url)
    with ActorPool(
        EvaluationWorker,
        job,
        size=runtime.evaluation_actors,
        num_cpus=runtime.cpus_per_worker,
        num_gpus=runtime.gpus_per_worker,
        check=check,
    ) as pool:
        pieces: list[Piece] = pool.call("pieces")
        there = set(storage.keys(job.root))
        missing = [piece for piece in pieces if job.piece_key(piece) not in there]
        done, reported = len(pieces) - len(missing), 0.0

        def answered(piece: Piece, _: float) -> None:
            nonlocal done, reported
            done += 1
            if done == len(pieces) or time.monotonic() - reported > 1.0:
                reported = time.monotonic()
                report(
                    {
                        "unit": "pieces",
                        "done": done,
                        "total": len(pieces),
                        "phase": str(piece),
                        "actors": len(pool.processes),
                        "actors_lost": pool.lost,
                    }
                )

        pool.map("work", missing, answered)
        return pool.call("finish", pieces)
