"""The passage from one stage to the next, stated: what is carried over and what starts anew.

Nothing here decides anything. A stage starts from its parent's *complete* milestone with the parent's weights and (by
default) optimizer moments, and with step, data position, seed and learning rate of its own; the loop derives all that
from storage and the recipe every time, so a crash anywhere in between changes nothing. This module writes it down.
"""

from __future__ import annotations

from typing import Any

from curriculum.schedule import learning_rate
from jobs.training.train_job import TrainJob
from pipeline.storage import Storage


def describe_transition(job: TrainJob, resumes_at: int | None) -> dict[str, Any]:
    """The first step that `job` takes, as exact values. `resumes_at` is its own newest milestone, if it has one."""
    step = resumes_at if resumes_at is not None else job.first_step
    return {
        "resumes_at": resumes_at or 0,
        "stage": job.stage_name,
        "from": _origin(job),
        "carried": "nothing" if _origin(job) is None else job.stage.init.load,
        "first_lr": learning_rate(job.stage, step),
        "peak_lr": job.stage.optimizer.lr,
        "seed": job.stage.seed,
        "data_position": step * (job.stage.global_batch_tokens // job.stage.sequence_length),
        "tokens_total": job.tokens_before + step * job.stage.global_batch_tokens,
        "stop_step": job.stop_step,
        "global_batch_tokens": job.stage.global_batch_tokens,
        "sequence_length": job.stage.sequence_length,
    }


def _origin(job: TrainJob) -> dict[str, Any] | None:
    if job.initial is not None:
        return {"stage": job.initial.name, "step": job.initial.step}
    return None if job.parent is None else {"stage": job.parent.stage, "step": job.parent.step}


def transition_banner(transition: dict[str, Any]) -> str:
    """One line for people."""
    origin = transition["from"]
    if transition["resumes_at"]:
        start = f"goes on from its own step {transition['resumes_at']}"
    elif origin is None:
        start = "starts from its seed"
    else:
        start = f"starts from {origin['stage']} step {origin['step']} ({transition['carried']})"
    return (
        f"{transition['stage']} {start}: LR {transition['first_lr']:.3g} (peak {transition['peak_lr']:.3g}), "
        f"seed {transition['seed']}, data position {transition['data_position']}, "
        f"{transition['tokens_total']:,} tokens before, {transition['stop_step']:,} steps of "
        f"{transition['global_batch_tokens']:,} tokens"
    )


def write_transition(storage: Storage, job: TrainJob, resumes_at: int | None) -> None:
    described = {**describe_transition(job, resumes_at), "attempt": job.attempt}
    storage.write_json(f"{job.step_key}/transition.json", described)


def read_transition(storage: Storage, step_key: str) -> dict[str, Any] | None:
    key = f"{step_key}/transition.json"
    return storage.read_json(key) if storage.exists(key) else None
