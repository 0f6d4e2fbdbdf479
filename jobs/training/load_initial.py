"""Reading a checkpoint from outside the run into a sharded model, with the proof that it is the pinned one."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from curriculum.load import plain
from curriculum.model_spec import ModelSpec
from jobs.runs.checkpoint_fit import WrongCheckpoint, check_model
from jobs.runs.initial_checkpoint import InitialCheckpoint
from jobs.training.milestones import load_milestone
from ncp_model.hf import load_pretrained
from ncp_model.hf_config import read_config, spec_of_config
from ncp_model.optim import Optimizers
from pipeline.dag.store import StepStore
from pipeline.data.verified import hash_object
from pipeline.storage import Storage


def load_initial(
    checkpoint: InitialCheckpoint, load: str, spec: ModelSpec, model: nn.Module, optimizers: Optimizers
) -> dict[str, Any]:
    """Fill the model, and the optimizers unless `load` is `weights`. All ranks call it. Returns the milestone's marker,
    or nothing for safetensors. Raises WrongCheckpoint, IncompleteCheckpoint or WeightFileError."""
    root = Storage(checkpoint.url)
    if checkpoint.kind == "safetensors":
        _load_safetensors(checkpoint, root, spec, model)
        return {}
    key = f"{checkpoint.step_key}/milestones/{checkpoint.step:09d}.json"
    digest = hashlib.sha256(root.read_bytes(key)).hexdigest()
    if digest != checkpoint.digest:
        raise WrongCheckpoint(
            f"init.from {checkpoint.name}: {root.uri(key)} has sha256 {digest[:12]}, pinned was "
            f"{checkpoint.digest[:12]}; restore it, or give the new one a name of its own"
        )
    identity = StepStore(root, checkpoint.step_key).identity()
    if identity is not None:
        check_model(checkpoint.name, identity["identity"]["model"], spec)
    return load_milestone(
        root, checkpoint.step_key, checkpoint.step, model, None if load == "weights" else optimizers
    )


def _load_safetensors(
    checkpoint: InitialCheckpoint, root: Storage, spec: ModelSpec, model: nn.Module
) -> None:
    copy = None if root.local else Path(tempfile.gettempdir()) / f"ncp-init-{checkpoint.digest[:16]}"
    folder = Path(root.root)
    if copy is not None:
        folder = copy
        _download(checkpoint, root, copy)
    problem = [_damage(checkpoint, Storage(str(folder))) if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(problem, src=0)
    if problem[0]:
        raise WrongCheckpoint(problem[0])
    check_model(checkpoint.name, plain(spec_of_config(read_config(folder))), spec)
    load_pretrained(model, spec, folder)
    dist.barrier()
    if copy is not None:
        shutil.rmtree(copy, ignore_errors=True)


def _download(checkpoint: InitialCheckpoint, root: Storage, folder: Path) -> None:
    """Once a node: the first worker that holds the lock fetches, the others find the files there."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        names = [path for path, _, _ in checkpoint.files] + ["config.json", "model.safetensors.index.json"]
        for name in names:
            if not (folder / name).exists() and root.exists(name):
                with root.open_read(name) as source, open(folder / f"{name}.partial", "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 24)
                (folder / f"{name}.partial").rename(folder / name)


def _damage(checkpoint: InitialCheckpoint, folder: Storage) -> str:
    for path, size, sha256 in checkpoint.files:
        if hash_object(folder, path) != (size, sha256):
            return (
                f"init.from {checkpoint.name}: {folder.uri(path)} is not the pinned file any more; restore it, or give "
                "the new one a name of its own"
            )
    return ""
