"""Weights & Biases beside storage: one W&B run per trajectory, resumed after a restart, offline without a key.

Metrics are always in storage; W&B is a copy for those who want it, and W&B in trouble is an alert and no error. The W&B
run's id is the trajectory's fingerprint, so every attempt and every restart continues the same curves; steps that are
taken again after a crash are the very same numbers, and W&B keeps the first. Offline folders lie beside the step, at
`{step}/wandb/` in storage (on remote storage from the end of an attempt on), or where WANDB_DIR says: `wandb sync` them.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from curriculum.load import plain
from jobs.training.alerts import Alert, write_alert
from jobs.training.initial_checkpoint import initial_record
from jobs.training.metric_log import MetricRow
from jobs.training.train_job import TrainJob
from pipeline.storage import Storage


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

        self._storage, self._step_key = Storage(job.storage_url), job.step_key
        self._spool: Path | None = None
        folder = os.environ.get("WANDB_DIR") or self._storage.local_path(job.step_key)
        if folder is None:
            folder = self._spool = Path(tempfile.mkdtemp(prefix="ncp-wandb-"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project,
            dir=str(folder),
            id=job.step_key.rpartition("-")[2],
            name=f"{job.run}-{job.stage_name}",
            group=job.run,
            job_type="train",
            resume="allow",
            mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
            config=_config(job),
            allow_val_change=True,  # a resumed stage may have a later stop, or run on other versions
            settings=wandb.Settings(silent=True),
        )

    def log(self, row: MetricRow) -> None:
        numbers = {name: value for name, value in row.values.items() if isinstance(value, int | float)}
        timing = {f"timing/{name}": value for name, value in row.timing.items()}
        self._run.log({**numbers, **timing}, step=row.step)

    def close(self) -> None:
        self._run.finish()
        if self._spool is not None:
            for path in sorted(self._spool.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    key = f"{self._step_key}/{path.relative_to(self._spool).as_posix()}"
                    self._storage.write_bytes(key, path.read_bytes())
            shutil.rmtree(self._spool)


def open_tracker(job: TrainJob) -> Tracker:
    """The tracker that the recipe's runtime asks for; none, and an alert, when W&B cannot be had."""
    if not job.wandb_project:
        return NoTracker()
    try:
        return WandbTracker(job, job.wandb_project)
    except Exception as error:  # a copy of the metrics is no reason not to train
        message = f"no W&B for this attempt ({type(error).__name__}: {error}); metrics are in storage"
        alert = Alert(
            kind="no_tracker",
            severity="warning",
            message=message,
            step=None,
            attempt=job.attempt,
            run=job.run,
        )
        write_alert(Storage(job.storage_url), job.step_key, alert)
        return NoTracker()


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
        "stop_step": job.stop_step,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "ray")},
        },
    }
