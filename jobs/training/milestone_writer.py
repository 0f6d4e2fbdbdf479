"""Milestones written beside the training: the loop stands still for a copy in memory, not for storage.

`save` waits for the milestone before it (never two in flight), copies this rank's shards into host memory and returns;
a thread writes the copy from all ranks, with a process group of its own for DCP's collectives, and rank 0 publishes the
marker last. Until then the milestone before stays the newest. `check`, asked at every step, raises what the writer
raised; `wait` does so once the milestone is complete, for the last one of a stage and for a stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from jobs.runs.retention import Retention
from jobs.training.milestones import training_state, write_milestone
from jobs.training.snapshot import Snapshot
from jobs.training.train_job import TrainJob
from ncp_model.optim import Optimizers
from pipeline.dag.lease import Superseded
from pipeline.storage import Storage


class CheckpointFailed(RuntimeError):
    """A milestone could not be written. An infrastructure error: the next attempt resumes from the one before."""


class MilestoneWriter:
    """One a worker, made on all ranks at the same time. With `job.runtime.async_checkpoints` off, `save` returns when it is written."""

    def __init__(self, storage: Storage, job: TrainJob, model: nn.Module, optimizers: Optimizers):
        self._storage, self._job = storage, job
        self._model, self._optimizers = model, optimizers
        self._retention = Retention(storage, job.step_key, keep=job.runtime.keep_checkpoints)
        group = dist.new_group(backend="gloo") if job.runtime.async_checkpoints else None
        self._group = cast(dist.ProcessGroup | None, group)  # every rank is in it
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._step = -1
        self._error: BaseException | None = None

    @property
    def writing(self) -> bool:
        """Whether a milestone is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, stability: Mapping[str, Any]) -> float:
        """Begin the milestone after optimizer step `step`. Returns how long the loop stood still for it, in seconds.

        Raises what the milestone before raised.
        """
        begun = time.monotonic()
        self.wait()
        tensors = training_state(self._model, self._optimizers)
        self._step = step
        if self._job.runtime.async_checkpoints:
            copies = self._snapshot.take(tensors)
            self._thread = threading.Thread(
                target=self._write, args=(step, copies, dict(stability)), name="milestone-writer", daemon=True
            )
            self._thread.start()
        else:
            self._write(step, tensors, stability)
            self.check()
        return time.monotonic() - begun

    def check(self) -> None:
        """Raise Superseded or CheckpointFailed if the writer ended with it."""
        if self._error is None or self.writing:
            return
        error, self._error = self._error, None
        if isinstance(error, Superseded):
            raise error
        raise CheckpointFailed(
            f"{self._job.stage_name} step {self._step}: the milestone was not written ({_reason(error)}); the one "
            f"before it stays the newest. See whether {self._storage.url} is reachable, writable and has room"
        ) from error

    def wait(self) -> None:
        """Return when no milestone is in flight. Raises as `check`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def finish(self, seconds: float) -> None:
        """On the way out after an error: let the milestone in flight become complete, for at most `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _write(self, step: int, tensors: Mapping[str, torch.Tensor], stability: Mapping[str, Any]) -> None:
        try:
            write_milestone(self._storage, self._job, step, tensors, stability, self._retention, self._group)
        except BaseException as error:  # DCP's own exception is no Exception; raised in the loop by `check`
            self._error = error


def _reason(error: BaseException) -> str:
    """One line: of DCP's exception, what the first failing rank met."""
    where = ""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items())
        error, where = cause, f"rank {rank}: "
    text = str(error).strip().splitlines()
    return f"{where}{type(error).__name__}" + (f": {text[0]}" if text else "")
