"""Checkpoints: torch DCP straight to storage from all ranks, our marker last.

A checkpoint is a set of named tensors, `model/{name}` and `optimizer/{name}/{state}`, and nothing else: no pickled
objects, so nothing in it can run code. What is not a tensor (step, tokens, seed, versions) is in the milestone's
marker, a JSON file that is written exclusively after every rank's data is complete; the marker holds the sha256 of every
file, made while it was written, and nothing is loaded before all of them were compared. Reading is by shape: a checkpoint
of two ranks loads at one or four.

DCP keeps its table of contents as a pickle; `SafeReader` unpickles it with a list of allowed classes and refuses
everything else.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from curriculum.errors import InputError
from jobs.runs.checkpoint_files import DamagedMilestone, files_problem, share_of
from jobs.training.checkpoint_writer import hashing_writer
from ncp_model.init import parameter_name
from ncp_model.muon import Muon
from ncp_model.optim import Optimizers
from pipeline.storage import Storage

T = TypeVar("T")


class UnsafeCheckpoint(InputError):
    """A checkpoint whose table of contents asks for a class that has no business in one."""


class IncompleteCheckpoint(InputError):
    """A checkpoint that holds other tensors than are asked for."""


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by name, as they are (DTensors under FSDP2)."""
    return {
        f"model/{parameter_name(name)}": parameter.detach() for name, parameter in model.named_parameters()
    }


def optimizer_tensors(model: nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """Optimizer state by parameter name. State that does not exist yet is allocated, so that it can be loaded into."""
    names = {parameter: parameter_name(name) for name, parameter in model.named_parameters()}
    tensors: dict[str, torch.Tensor] = {}
    for optimizer in optimizers.optimizers:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            state = optimizer.state[parameter]
            if not state:
                state.update(_empty_state(optimizer, parameter))
            tensors |= {f"optimizer/{names[parameter]}/{key}": value for key, value in state.items()}
    return tensors


def _empty_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the optimizer itself would make at its first step."""
    if isinstance(optimizer, Muon):
        return {"momentum_buffer": torch.zeros_like(parameter)}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


@dataclass(frozen=True, kw_only=True)
class SavedFiles:
    """A checkpoint's files as they were written: name -> size in bytes, and name -> sha256."""

    sizes: dict[str, int]
    sha256: dict[str, str]


def save_tensors(
    storage: Storage, key: str, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup | None = None
) -> SavedFiles:
    """Write `tensors` under `key` from all ranks of `group`. Returns sizes and digests of all files, the same on every rank.

    The digests are made while the files are written, and the sizes are what storage then holds. The caller publishes a marker
    with both afterwards; until then nothing refers to the data.
    """
    writer, written = hashing_writer(storage, key)
    with _one_process_is_fine():
        dcp.save(tensors, storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())
    sha256: dict[str, str] = {}
    for digests in _gathered(written.digests, group):
        sha256 |= digests
    sizes = {name: storage.size(f"{key}/{name}") for name in sorted(sha256)}
    return SavedFiles(sizes=sizes, sha256={name: sha256[name] for name in sizes})


def load_tensors(
    storage: Storage,
    key: str,
    tensors: dict[str, torch.Tensor],
    files: Mapping[str, int],
    sha256: Mapping[str, str] | None = None,
) -> None:
    """Fill `tensors` in place from the checkpoint under `key`, at any world size. All ranks call it.

    Before anything is read every file is compared with its size and digest, each by one rank for all. Raises DamagedMilestone
    naming a file that differs, on every rank; IncompleteCheckpoint for a tensor that is not in the checkpoint or not in `tensors`
    (of the parts that are asked for: weights alone may leave the optimizer's state); UnsafeCheckpoint for a table of contents
    that is not one.
    """
    sha256 = sha256 or {}
    _verify(storage, key, files, sha256)
    reader = SafeFileReader(storage.uri(key)) if storage.local else SafeFsspecReader(storage.uri(key))
    place = storage.uri(key)
    # Read here first: dcp.load would bury the reason of a refusal in an exception of its own.
    try:
        held = reader.read_metadata().state_dict_metadata
    except (UnsafeCheckpoint, OSError):
        raise
    except Exception as error:  # what unpickling damaged bytes may raise is anything
        raise DamagedMilestone(
            f"{place}/.metadata is no table of contents ({type(error).__name__})"
        ) from error
    absent = sorted(tensors.keys() - held.keys())
    if absent:
        raise IncompleteCheckpoint(
            f"checkpoint {place}: holds no tensor {absent[0]!r}; it was written by another model or optimizer"
        )
    parts = {name.partition("/")[0] for name in tensors}
    extra = sorted(name for name in held.keys() - tensors.keys() if name.partition("/")[0] in parts)
    if extra:
        raise IncompleteCheckpoint(
            f"checkpoint {place}: holds {len(extra)} tensors that have no place here, {extra[0]!r} first; it was written by "
            "another model or optimizer"
        )
    try:
        with _one_process_is_fine():
            dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if sha256 or isinstance(cause, OSError):
            raise
        raise DamagedMilestone(
            f"{place} cannot be read (rank {rank}: {type(cause).__name__}: {cause})"
        ) from error


def _verify(storage: Storage, key: str, files: Mapping[str, int], sha256: Mapping[str, str]) -> None:
    """Every file once over the group. Raises the same on all ranks: DamagedMilestone, or what storage answered."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    problem, failure = "", None
    try:
        problem = files_problem(storage, key, files, sha256, share_of(files, rank, ranks))
    except OSError as error:
        failure = error
    found = _gathered((problem, None if failure is None else f"{type(failure).__name__}: {failure}"), None)
    for other, (_, failed) in enumerate(found):
        if failed is not None:
            raise OSError(f"rank {other} could not verify {storage.uri(key)}: {failed}") from failure
    first = next((text for text, _ in found if text), "")
    if first:
        raise DamagedMilestone(first)


def _gathered(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """One value of every rank, the same list on all."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


@contextlib.contextmanager
def _one_process_is_fine() -> Iterator[None]:
    """Evaluation and export read without a process group, on purpose; DCP warns about it every time."""
    if dist.is_initialized():  # nothing to be quiet about, and a thread must not touch the warnings of all
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


_ALLOWED = {
    "torch": {
        "Size",
        "device",
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "uint8",
        "bool",
    },
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath"},
}


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name not in _ALLOWED.get(module_name, ()):
            raise UnsafeCheckpoint(
                f"checkpoint metadata names {module_name}.{global_name}, which no checkpoint of ncp holds; "
                "it was tampered with or written by something else"
            )
        return super().find_class(module_name, global_name)


def read_metadata(data: bytes, load_id: str) -> Metadata:
    """DCP's table of contents from its pickle, through the allow-list. Raises UnsafeCheckpoint."""
    metadata = _AllowListUnpickler(io.BytesIO(data)).load()
    if not isinstance(metadata, Metadata):
        raise UnsafeCheckpoint(f"checkpoint metadata is a {type(metadata).__name__}, not a table of contents")
    metadata.storage_meta = metadata.storage_meta or StorageMeta()
    metadata.storage_meta.load_id = load_id
    return metadata


class SafeFileReader(FileSystemReader):
    """DCP's reader for a directory, with the allow-listing unpickler."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            return read_metadata(file.read(), self.load_id)


class SafeFsspecReader(FsspecReader):
    """DCP's reader for object storage, with the allow-listing unpickler."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            return read_metadata(file.read(), self.load_id)
