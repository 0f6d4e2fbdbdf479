"""Weights & Biases beside storage: one W&B run per trajectory, resumed after a restart, offline without a key.

Metrics are always in storage; W&B is a copy for those who want it. The W&B run's id is the trajectory's fingerprint, so
every attempt and every restart continues the same curves.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from curriculum.load import plain
from jobs.initial_checkpoint import initial_record
from jobs.metric_log import MetricRow
from jobs.train_job import TrainJob


class Tracker(Protocol):
    """Takes the rows that go to storage too."""

    def log(self, row: MetricRow) -> None: ...

    def close(self) -> None: ...


class NoTracker:
    """Nothing beside storage."""

    def log(self, row: MetricRow) -> None:
        """Takes nothing."""

    def close(self) -> None:
        """Nothing to close."""


class WandbTracker:
    """Metrics to W&B: online when an API key is there, else into an offline folder that `wandb sync` uploads."""

    def __init__(self, job: TrainJob, project: str):
        import wandb

        self._run = wandb.init(
            project=project,
            id=job.step_key.rpartition("-")[2],
            name=f"{job.run}-{job.stage_name}",
            resume="allow",
            mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
            config=_config(job),
            settings=wandb.Settings(silent=True),
        )

    def log(self, row: MetricRow) -> None:
        numbers = {name: value for name, value in row.values.items() if isinstance(value, int | float)}
        timing = {f"timing/{name}": value for name, value in row.timing.items()}
        self._run.log({**numbers, **timing}, step=row.step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(job: TrainJob) -> Tracker:
    """The tracker that the recipe's runtime asks for."""
    return WandbTracker(job, job.wandb_project) if job.wandb_project else NoTracker()


def _config(job: TrainJob) -> dict[str, Any]:
    """What the curves belong to, and where they come from."""
    return {
        "stage": job.stage_name,
        "trajectory": job.step_key,
        "run": job.run,
        "parent": None
        if job.parent is None
        else {"trajectory": job.parent.step_key, "step": job.parent.step},
        "initial": None if job.initial is None else initial_record(job.initial),
        "tokens_before": job.tokens_before,
        "stage_spec": plain(job.stage),
        "model": plain(job.model),
        "precision": plain(job.precision),
        "shards": dict(job.shards),
    }
