"""Milestones of a training trajectory: writing, loading, and which may be deleted.

A milestone `N` is a checkpoint taken after optimizer step N, with a marker written last. The marker is the only truth:
at a start the newest complete marker wins, whatever else lies around.

Retention: the newest milestone, the initial one, every milestone at which some run's stage stops, every milestone
another step was started from, and every one that some run has yet to evaluate are kept; the others are ephemeral and go when a newer one is complete. Which milestones
runs name is asked of storage at that moment.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from curriculum.tokens import stage_steps
from jobs.checkpoint import load_tensors, model_tensors, optimizer_tensors, save_tensors
from jobs.evaluation_points import awaiting_evaluation
from jobs.runs import named_milestones
from jobs.train_job import TrainJob
from ncp_model.optim import Optimizers
from pipeline.dag.lease import LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.storage import Storage


def save_milestone(
    storage: Storage,
    job: TrainJob,
    step: int,
    model: nn.Module,
    optimizers: Optimizers,
    stability: Mapping[str, Any],
) -> None:
    """Checkpoint after optimizer step `step` (0: before the first). All ranks call it; returns when it is complete.

    Raises Superseded on every rank when another attempt has taken the trajectory over.
    """
    store = StepStore(storage, job.step_key)
    data_key = f"{job.step_key}/checkpoints/{step:09d}-a{job.attempt:06d}"
    _clear_leftovers(storage, data_key)
    files = save_tensors(storage, data_key, {**model_tensors(model), **optimizer_tensors(model, optimizers)})
    verdict = [
        _publish(storage, store, job, step, data_key, files, stability) if dist.get_rank() == 0 else ""
    ]
    dist.broadcast_object_list(verdict, src=0)
    if verdict[0]:
        raise Superseded(verdict[0])


def load_milestone(
    storage: Storage,
    step_key: str,
    step: int,
    model: nn.Module,
    optimizers: Optimizers | None,
) -> dict[str, Any]:
    """Fill the model, and the optimizers if given, from milestone `step`. Returns its marker."""
    marker = StepStore(storage, step_key).milestone(step)
    if marker is None:
        raise FileNotFoundError(f"{storage.uri(step_key)}: no milestone at step {step}")
    tensors = model_tensors(model)
    if optimizers is not None:
        tensors |= optimizer_tensors(model, optimizers)
    load_tensors(storage, marker["data"], tensors, marker["files"])
    return marker


def prunable(storage: Storage, step_key: str) -> Iterator[int]:
    """Milestones that nothing needs any more."""
    steps = StepStore(storage, step_key).milestones()
    keep = {
        0,
        *steps[-1:],
        *named_milestones(storage, step_key),
        *awaiting_evaluation(storage, step_key, steps),
    }
    return (step for step in steps if step not in keep)


def prune(storage: Storage, step_key: str) -> None:
    """Delete what `prunable` lists: the marker first, so that a reader never finds one without its data."""
    store = StepStore(storage, step_key)
    for step in prunable(storage, step_key):
        marker = store.milestone(step)
        store.retract_milestone(step)
        if marker is not None:
            storage.delete_tree(marker["data"])


def _publish(
    storage: Storage,
    store: StepStore,
    job: TrainJob,
    step: int,
    data_key: str,
    files: dict[str, int],
    stability: Mapping[str, Any],
) -> str:
    """Rank 0: write the marker if this attempt still holds the trajectory. Returns why not, or an empty string."""
    held = LeaseBook(storage, job.step_key).highest()
    if held != job.attempt:
        return f"attempt {job.attempt} of {job.step_key}: superseded by {held}; milestone {step} was not published"
    tokens = step * job.stage.global_batch_tokens
    store.publish_milestone(
        step,
        {
            "step": step,
            "stage": job.stage_name,
            "tokens_in_stage": tokens,
            "tokens_total": job.tokens_before + tokens,
            "data": data_key,
            "files": files,
            "attempt": job.attempt,
            "run": job.run,
            "stability": dict(stability),
            "stage_complete": step == stage_steps(job.stage),
            "world_size": dist.get_world_size(),
            "micro_batch_size": job.micro_batch_size,
            "device": job.device,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "ray": version("ray"),
            },
            "at": time.time(),
        },
    )
    prune(storage, job.step_key)
    return ""


def _clear_leftovers(storage: Storage, data_key: str) -> None:
    """A restarted worker group of the same attempt may have died while writing these very files."""
    if dist.get_rank() == 0:
        storage.delete_tree(data_key)
    dist.barrier()
