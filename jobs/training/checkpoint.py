"""Checkpoints: torch DCP straight to storage from all ranks, our marker last.

A checkpoint is a set of named tensors, `model/{name}` and `optimizer/{name}/{state}`, and nothing else: no pickled
objects, so nothing in it can run code. What is not a tensor (step, tokens, seed, versions) is in the milestone's
marker, a JSON file that is written exclusively after every rank's data is complete. Reading is by shape: a checkpoint
of two ranks loads at one or four.

DCP keeps its table of contents as a pickle; `SafeReader` unpickles it with a list of allowed classes and refuses
everything else.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from curriculum.errors import InputError
from ncp_model.init import parameter_name
from ncp_model.muon import Muon
from ncp_model.optim import Optimizers
from pipeline.storage import Storage


class UnsafeCheckpoint(InputError):
    """A checkpoint whose table of contents asks for a class that has no business in one."""


class IncompleteCheckpoint(InputError):
    """A checkpoint whose files are not what its marker says."""


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


def save_tensors(
    storage: Storage, key: str, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup | None = None
) -> dict[str, int]:
    """Write `tensors` under `key` from all ranks of `group`. Returns file name -> size, the same on every rank.

    The caller publishes a marker with these sizes afterwards; until then nothing refers to the data.
    """
    writer = FileSystemWriter(storage.uri(key)) if storage.local else FsspecWriter(storage.uri(key))
    with _one_process_is_fine():
        dcp.save(tensors, storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())
    return _file_sizes(storage, key)


def load_tensors(storage: Storage, key: str, tensors: dict[str, torch.Tensor], files: dict[str, int]) -> None:
    """Fill `tensors` in place from the checkpoint under `key`, at any world size.

    Raises IncompleteCheckpoint when a file is missing or has another size than its marker says or a tensor is not in
    it, and UnsafeCheckpoint for a table of contents that is not one.
    """
    found = _file_sizes(storage, key)
    if found != files:
        wrong = sorted(name for name in found.keys() | files.keys() if found.get(name) != files.get(name))
        raise IncompleteCheckpoint(
            f"checkpoint {storage.uri(key)}: {wrong[0]} has {found.get(wrong[0], 'no')} bytes, its marker says "
            f"{files.get(wrong[0], 'none')}; delete the milestone's marker to fall back to the one before"
        )
    reader = SafeFileReader(storage.uri(key)) if storage.local else SafeFsspecReader(storage.uri(key))
    # Read here first: dcp.load would bury the reason of a refusal in an exception of its own.
    held = reader.read_metadata().state_dict_metadata
    absent = sorted(tensors.keys() - held.keys())
    if absent:
        raise IncompleteCheckpoint(
            f"checkpoint {storage.uri(key)}: holds no tensor {absent[0]!r}; it was written by another model or optimizer"
        )
    with _one_process_is_fine():
        dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())


@contextlib.contextmanager
def _one_process_is_fine() -> Iterator[None]:
    """Evaluation and export read without a process group, on purpose; DCP warns about it every time."""
    if dist.is_initialized():  # nothing to be quiet about, and a thread must not touch the warnings of all
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _file_sizes(storage: Storage, key: str) -> dict[str, int]:
    return {name.removeprefix(f"{key}/"): storage.size(name) for name in storage.keys(key)}


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
