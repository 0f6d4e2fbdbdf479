"""Weights & Biases beside storage: one W&B run per trajectory, resumed after a restart, offline without a key or a server.

Metrics are always in storage; W&B is a copy for those who want it, and W&B in trouble is an alert and no error. It lives in
a process of its own (`wandb_process`), fed by a thread of its own: training hands a row over and goes on, whatever W&B
does, and waits at its end for FINISH_SECONDS and no longer. A server that does not answer makes the attempt an offline one
at once; a process that dies, or does not come to its end, is replaced by an offline one, with the last REPLAYED rows. The W&B
run's id is the trajectory's fingerprint, so every attempt and every restart continues the same curves; steps that are
taken again after a crash are the very same numbers, and W&B keeps the first. Offline folders lie beside the step, at
`{step}/wandb/` in storage (on remote storage from the end of an attempt on), or where WANDB_DIR says: `wandb sync` them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from curriculum.load import plain
from jobs.runs.alerts import Alert, write_alert
from jobs.runs.initial_checkpoint import initial_record
from jobs.runs.metric_log import MetricRow
from jobs.runs.metric_values import plain_number
from jobs.training.train_job import TrainJob
from jobs.training.wandb_mode import WandbMode, wandb_mode
from pipeline.dag.versions import versions
from pipeline.storage import Storage

PROBE_SECONDS = 5.0
"""How long a server may take to answer anything at all."""
INIT_SECONDS = 30.0
FINISH_SECONDS = 20.0
"""What the end of a run waits for W&B, at most; twice that where it has to be killed, or its folder goes to remote storage."""
QUEUED_ROWS = 100_000
REPLAYED = 10_000
_PROCESS = Path(__file__).with_name("wandb_process.py")


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
    """Metrics to W&B, in the background: online, or into an offline folder that `wandb sync` uploads."""

    def __init__(self, job: TrainJob, project: str, mode: WandbMode):
        self._job, self._mode = job, mode
        self._storage = Storage(job.storage_url)
        self._spool: Path | None = None
        folder = os.environ.get("WANDB_DIR") or self._storage.local_path(job.step_key)
        if folder is None:
            folder = self._spool = Path(tempfile.mkdtemp(prefix="ncp-wandb-"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._settings = {
            "project": project,
            "dir": str(folder),
            "id": job.step_key.rpartition("-")[2],
            "name": f"{job.run}-{job.stage_name}",
            "group": job.run,
            "job_type": "train",
            "resume": "allow",
            "config": _config(job),
            "allow_val_change": True,  # a resumed stage may have a later stop, or run on other versions
            "init_seconds": INIT_SECONDS,
            "finish_seconds": FINISH_SECONDS
            / 2,  # it ends by itself before it would be killed, and leaves time for another
        }
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUED_ROWS)
        self._recent: deque[str] = deque(maxlen=REPLAYED)
        self._process: subprocess.Popen[str] | None = None
        self._killed = False
        self._said = 0
        self._thread = threading.Thread(target=self._run, name="ncp-wandb", daemon=True)
        self._thread.start()

    def log(self, row: MetricRow) -> None:
        numbers = {name: plain_number(value) for name, value in row.values.items()}
        numbers |= {f"timing/{name}": plain_number(value) for name, value in row.timing.items()}
        values = {name: value for name, value in numbers.items() if isinstance(value, int | float)}
        with contextlib.suppress(queue.Full):  # a process that stands still; storage has the row
            self._queue.put_nowait(json.dumps({"step": row.step, "values": values}))

    def close(self) -> None:
        """Let W&B finish, for so long and no longer."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        for _ in range(2):  # the second time for the one that took the first one's place
            self._thread.join(FINISH_SECONDS)
            if not self._thread.is_alive():
                return
            self._killed = True
            self._kill()
        self._thread.join(PROBE_SECONDS)

    def _run(self) -> None:
        try:
            online = self._mode.mode == "online"
            if online and (silence := _silence(self._mode.url)):
                self._warn(
                    f"{self._mode.url} does not answer ({silence}); this attempt is kept offline, see wandb sync"
                )
                online = False
            if not self._feed("online" if online else "offline"):
                self._feed("offline")
        except Exception as error:  # a copy of the metrics is no reason not to train
            self._warn(f"{type(error).__name__}: {error}")
        self._keep_folder()

    def _feed(self, mode: str) -> bool:
        """Give a process all rows until the end; False if it died before, or could not say all of them. What it says becomes
        alerts."""
        environment = dict(os.environ)
        if mode == "offline":  # else it asks the server too, and waits for it
            for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
                environment.pop(name, None)
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROCESS)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt is for the training
        )
        assert process.stdin is not None and process.stdout is not None
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        try:
            process.stdin.write(json.dumps(self._settings | {"mode": mode}) + "\n")
            for line in [*self._recent]:
                process.stdin.write(line + "\n")
            process.stdin.flush()
            while process.poll() is None:
                try:
                    line = self._queue.get(timeout=1.0)
                except queue.Empty:
                    continue
                if line is None:
                    self._queue.put_nowait(None)  # for the process that would take this one's place
                    break
                self._recent.append(line)
                process.stdin.write(line + "\n")
                process.stdin.flush()
            process.stdin.close()
        except OSError:
            pass  # it died: its last words are on their way
        code = process.wait()
        # What was killed may have left a child that holds the pipe open.
        listener.join(0 if self._killed else PROBE_SECONDS)
        if code == 3 or self._killed:
            self._killed = False
            self._warn(
                f"W&B did not finish; the last {REPLAYED:,} rows are kept offline: wandb sync {self._settings['dir']}/wandb"
            )
        return code == 0

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._warn(line.strip())

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # wandb-core ends when it misses its parent

    def _keep_folder(self) -> None:
        if self._spool is None:
            return
        with contextlib.suppress(OSError):
            for path in sorted(self._spool.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    key = f"{self._job.step_key}/{path.relative_to(self._spool).as_posix()}"
                    self._storage.write_bytes(key, path.read_bytes())
            shutil.rmtree(self._spool)

    def _warn(self, message: str) -> None:
        self._said += 1
        _alert(self._job, message, f"{self._said:03d}")


def open_tracker(job: TrainJob) -> Tracker:
    """The tracker that the recipe's runtime asks for; none, and an alert, when W&B cannot be had. Returns at once."""
    mode = wandb_mode()
    if not job.runtime.wandb_project or mode.mode == "disabled":
        return NoTracker()
    try:
        if find_spec("wandb") is None:
            raise ModuleNotFoundError("wandb is not installed")
        return WandbTracker(job, job.runtime.wandb_project, mode)
    except Exception as error:
        _alert(job, f"no W&B for this attempt ({type(error).__name__}: {error}); metrics are in storage")
        return NoTracker()


def _alert(job: TrainJob, message: str, number: str = "") -> None:
    alert = Alert(
        kind="no_tracker", severity="warning", message=message, step=None, attempt=job.attempt, run=job.run
    )
    with contextlib.suppress(Exception):  # whatever storage says: this is about a copy
        write_alert(Storage(job.storage_url), job.step_key, alert, number)


def _silence(url: str) -> str:
    """Why a server is taken for absent, or nothing: an answer of any kind is one."""
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


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
        "versions": dict(versions()),
    }
