"""Milestones of a training trajectory: what is written, in which order, and how one is loaded.

A milestone `N` is a checkpoint taken after optimizer step N, with a marker written last. The marker is the only truth:
at a start the newest complete marker wins, whatever else lies around. `jobs.training.milestone_writer` writes them beside the
training, `jobs.runs.retention` says which are kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from curriculum.tokens import stage_steps
from jobs.runs.alerts import Alert, write_alert
from jobs.runs.checkpoint_files import DamagedMilestone, is_verifiable
from jobs.runs.retention import Retention, RetentionFailed
from jobs.training.checkpoint import (
    SavedFiles,
    load_tensors,
    model_tensors,
    optimizer_tensors,
    save_tensors,
)
from jobs.training.train_job import TrainJob
from ncp_model.optim import Optimizers
from pipeline.dag.lease import LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.dag.versions import versions
from pipeline.records import DamagedRecord
from pipeline.storage import Storage


def training_state(model: nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """Everything that a milestone's data holds, by name."""
    return {**model_tensors(model), **optimizer_tensors(model, optimizers)}


def write_milestone(
    storage: Storage,
    job: TrainJob,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    stability: Mapping[str, Any],
    retention: Retention,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write `tensors` as the milestone after optimizer step `step` (0: before the first), marker last.

    All ranks call it; `group` carries its collectives (None: the default group). Returns when the milestone is complete
    and older ones are pruned; what cannot be deleted is an alert and no error. Raises Superseded on every rank when another attempt has taken the trajectory over.
    """
    data_key = f"{job.step_key}/checkpoints/{step:09d}-a{job.attempt:06d}"
    if dist.get_rank() == 0:  # a restarted worker group may have died while writing these very files
        storage.delete_tree(data_key)
    dist.barrier(group)
    files = save_tensors(storage, data_key, dict(tensors), group)
    verdict: list[Any] = ["", None]
    if dist.get_rank() == 0:
        try:
            verdict[0] = _publish(storage, job, step, data_key, files, stability)
        except Exception as error:  # the others wait to hear how it went
            verdict[1] = error
    dist.broadcast_object_list(verdict, src=0, group=group)
    if verdict[1] is not None:
        raise verdict[1]
    if verdict[0]:
        raise Superseded(verdict[0])
    if dist.get_rank() == 0:
        _tidy(storage, job, retention)


def _tidy(storage: Storage, job: TrainJob, retention: Retention) -> None:
    """Prune after a milestone that is complete. Old data that stays takes room, which is no reason to end a training."""
    try:
        retention.prune(job.attempt)
        retention.write_csv()
    except Exception as error:
        alert = Alert(
            kind="retention_failed",
            severity="warning",
            message=f"the milestone is complete, but {error if isinstance(error, RetentionFailed) else _told(error)}",
            step=None,  # so it is said once an attempt
            attempt=job.attempt,
            run=job.run,
        )
        write_alert(storage, job.step_key, alert)


def _told(error: Exception) -> str:
    return f"checkpoints.csv or the list of old checkpoints failed: {type(error).__name__}: {error}"


def load_milestone(
    storage: Storage,
    step_key: str,
    step: int,
    model: nn.Module,
    optimizers: Optimizers | None,
) -> dict[str, Any]:
    """Fill the model, and the optimizers if given, from milestone `step`. Returns its marker. All ranks call it.

    Raises DamagedMilestone, on every rank, when its marker or a file of it is not what was written; nothing was loaded then.
    """
    try:
        marker = StepStore(storage, step_key).milestone(step)
        if marker is None:
            raise FileNotFoundError(f"{storage.uri(step_key)}: no milestone at step {step}")
        tensors = model_tensors(model) if optimizers is None else training_state(model, optimizers)
        load_tensors(storage, marker["data"], tensors, marker["files"], marker.get("sha256"))
    except (DamagedMilestone, DamagedRecord) as error:
        raise DamagedMilestone(f"milestone {step} of {step_key}: {error}", step_key, step) from error
    if not is_verifiable(marker) and (not dist.is_initialized() or dist.get_rank() == 0):
        print(
            f"milestone {step} of {step_key} was written before there were digests: loaded unverified but for its sizes",
            file=sys.stderr,
        )
    return marker


def _publish(
    storage: Storage,
    job: TrainJob,
    step: int,
    data_key: str,
    files: SavedFiles,
    stability: Mapping[str, Any],
) -> str:
    """Rank 0: write the marker if this attempt still holds the trajectory. Returns why not, or an empty string."""
    held = LeaseBook(storage, job.step_key).highest()
    if held != job.attempt:
        return f"attempt {job.attempt} of {job.step_key}: superseded by {held}; milestone {step} was not published"
    tokens = step * job.stage.global_batch_tokens
    every = job.runtime.permanent_checkpoint_every_steps
    StepStore(storage, job.step_key).publish_milestone(
        step,
        {
            "step": step,
            "stage": job.stage_name,
            "tokens_in_stage": tokens,
            "tokens_total": job.tokens_before + tokens,
            "data": data_key,
            "files": files.sizes,
            "sha256": files.sha256,
            "attempt": job.attempt,
            "run": job.run,
            "stability": dict(stability),
            "stage_complete": step == stage_steps(job.stage),
            "permanent": every > 0 and step % every == 0,
            "world_size": dist.get_world_size(),
            "micro_batch_size": job.runtime.micro_batch_size,
            "device": job.device,
            "versions": dict(versions()),
            "at": time.time(),
        },
    )
    return ""
