"""`ncp` as its user runs it: a real process, on a storage of its own, to be watched from storage and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from jobs.training.checkpoint import load_tensors
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

ROOT = Path(__file__).parent.parent
SMALL = str(ROOT / "tests" / "small.yaml")
TIMEOUT_SECONDS = 600
NICE = {"RAY_worker_niceness": "0"}
"""Ray's workers yield to everything else on the machine unless told otherwise: to the tests beside them, and to the next run."""


def _interruptible() -> None:
    """A shell's background jobs ignore SIGINT, and so would all that is started below them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class NcpProcess:
    """One `ncp ...` process."""

    def __init__(
        self,
        storage: Path,
        *arguments: str,
        keep_ray: bool = False,
        environment: Mapping[str, str] | None = None,
    ):
        """`environment` is added to this process's."""
        everything = {**os.environ, "PYTHONPATH": str(ROOT), "NCP_STORAGE": str(storage)}
        if not keep_ray:  # a Ray of its own, whatever the test session uses
            everything = {name: value for name, value in everything.items() if not name.startswith("RAY_")}
        everything |= NICE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobs.cli", *arguments],
            env={**everything, **(environment or {})},
            cwd=storage.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_interruptible,
        )

    def finish(self) -> tuple[int, str]:
        """Wait for the end: (exit code, all output)."""
        try:
            output, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, output

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Watch until `condition` holds; fails if the process ends first."""
        give_up = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"ncp ended before the condition held:\n{self.finish()[1]}")
            if time.monotonic() > give_up:
                self.process.kill()
                raise AssertionError(f"the condition never held:\n{self.finish()[1]}")
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> str:
        """Send the signal and wait for the end; all output until then."""
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return output


def ncp(storage: Path, *arguments: str, keep_ray: bool = False) -> tuple[int, str]:
    """Run `ncp` to its end: (exit code, all output)."""
    return NcpProcess(storage, *arguments, keep_ray=keep_ray).finish()


def wait_for(condition: Callable[[], bool]) -> None:
    """Watch storage until `condition` holds."""
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        time.sleep(0.02)


def step_store(storage: Path, name: str) -> StepStore | None:
    """The only step directory of that name, once it is there."""
    opened = Storage(str(storage))
    found = [key for key in opened.children("steps") if key[:-13] == name]
    assert len(found) <= 1, found
    return StepStore(opened, f"steps/{found[0]}") if found else None


def milestones(storage: Path, stage: str) -> list[int]:
    store = step_store(storage, stage)
    return store.milestones() if store else []


def milestone_tensors(storage: Path, stage: str, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a milestone, weights and optimizer state, whole."""
    store = step_store(storage, stage)
    assert store is not None
    marker = store.milestone(step)
    assert marker is not None, f"no milestone {step}, only {store.milestones()}"
    return read_checkpoint(store.storage, marker)


def read_checkpoint(storage: Storage, marker: dict[str, Any]) -> dict[str, torch.Tensor]:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from jobs.training.checkpoint import SafeFileReader, SafeFsspecReader

    reader = SafeFileReader if storage.local else SafeFsspecReader
    held = reader(storage.uri(marker["data"])).read_metadata().state_dict_metadata
    tensors = {}
    for name, entry in held.items():
        assert isinstance(entry, TensorStorageMetadata)
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    load_tensors(storage, marker["data"], tensors, marker["files"])
    return tensors


def copy_staged(storage: Path, target: Path) -> None:
    """A new storage that holds the pins, tokenizer and shards of another, and no training."""
    for folder in ("pins", "sources"):
        shutil.copytree(storage / folder, target / folder)
    for step in (storage / "steps").iterdir():
        if step.name.startswith(("tokenizer", "shards")):
            shutil.copytree(step, target / "steps" / step.name)


def training_workers(driver: int) -> list[int]:
    """PIDs of the Ray Train workers that descend from `driver`, ascending."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            names[int(entry.name)] = (entry / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, queue = [], [driver]
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        if "RayTrainWorker" in names.get(pid, ""):
            found.append(pid)
    return sorted(found)
