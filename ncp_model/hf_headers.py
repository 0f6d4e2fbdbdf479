"""What a folder of safetensors holds, by its headers alone: which tensor lies where, of what dtype and shape.

A few kilobytes of each file are read, so a checkpoint that cannot be loaded is refused while a run is planned, on any
storage. No torch here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.model_spec import ModelSpec
from ncp_model.hf_config import LFS_POINTER, parse_object
from ncp_model.hf_names import Binding, WeightFileError, listed, published_shapes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000
_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
}
CONVERTED = ("F32", "F16", "BF16")
"""Every value of these is a float32: they become the model's parameters without loss."""

ReadRange = Callable[[str, int, int], bytes]
"""Bytes of a file of the folder: name, offset, length."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a folder."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def read_headers(where: str, sizes: Mapping[str, int], read: ReadRange) -> dict[str, TensorEntry]:
    """Every tensor of the folder at `where`, whose files have these sizes. Raises WeightFileError or ConfigError that
    names the file: one that the index names and is not there, was cut, is a Git LFS pointer, or disagrees with the index."""
    if INDEX in sizes:
        expected = _weight_map(f"{where}/{INDEX}", read(INDEX, 0, sizes[INDEX]))
    elif SINGLE in sizes:
        expected = {}
    else:
        raise WeightFileError(f"{where}: holds neither {INDEX} nor {SINGLE}")
    shards = sorted(set(expected.values())) or [SINGLE]
    missing = [shard for shard in shards if shard not in sizes]
    if missing:
        raise WeightFileError(
            f"{where}/{INDEX}: names {listed(missing)}, and no such file is there; fetch it"
        )
    found: dict[str, TensorEntry] = {}
    problems: list[str] = []
    for shard in shards:
        for name, entry in _read_header(f"{where}/{shard}", shard, sizes[shard], read).items():
            if name in found:
                problems.append(f"{name} is in {found[name].file} and in {shard}")
            elif expected and expected.get(name) != shard:
                problems.append(
                    f"{name} is in {shard}, and {INDEX} puts it in {expected.get(name, 'no file')}"
                )
            found[name] = entry
    problems += [
        f"{name} is not in {expected[name]}, where {INDEX} puts it" for name in expected.keys() - found.keys()
    ]
    if problems:
        raise WeightFileError(f"{where}: {listed(sorted(problems))}")
    return found


def check_tensors(
    where: str,
    entries: Mapping[str, TensorEntry],
    spec: ModelSpec,
    bindings: Sequence[Binding],
    *,
    release: bool,
) -> dict[str, tuple[str, str]]:
    """Published name -> (name in its file, file), of tensors that are exactly those of `bindings`.

    Raises WeightFileError that lists missing, unexpected, doubled and misshapen tensors, and dtypes that are not converted.
    """
    wanted = published_shapes(spec, list(bindings))
    actual: dict[str, str] = {}
    problems = []
    for name in entries:
        ours = canonical(name, release=release)
        if ours in actual:
            problems.append(f"{name} and {actual[ours]} are the same tensor")
        actual[ours] = name
    problems += [f"missing {name}" for name in sorted(wanted.keys() - actual.keys())]
    problems += [f"unexpected {actual[name]}" for name in sorted(actual.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & actual.keys()):
        entry = entries[actual[name]]
        if entry.shape != wanted[name]:
            problems.append(f"{name} has shape {entry.shape}, the model needs {wanted[name]}")
        elif entry.dtype not in CONVERTED:
            problems.append(
                f"{name} has dtype {entry.dtype}: convert the weights to {', '.join(CONVERTED)} first"
            )
    if problems:
        raise WeightFileError(f"{where}: {listed(problems)}")
    return {name: (actual[name], entries[actual[name]].file) for name in wanted}


def canonical(name: str, *, release: bool) -> str:
    """Undo the spellings in which exporters differ: a wrapper's prefix, and the concept tower's norm."""
    if release:
        name = name.removeprefix("model.")
        name = name.replace("hlm_block.final_layernorm.", "hlm_block.norm.")
    return name


def _weight_map(where: str, data: bytes) -> dict[str, str]:
    mapping = parse_object(where, data).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise WeightFileError(
            f"{where}: has no weight_map, which says where each tensor lies; fetch the index anew"
        )
    for name, file in mapping.items():
        if not isinstance(file, str) or "/" in file or "\\" in file or file in ("", ".", ".."):
            raise WeightFileError(
                f"{where}: weight_map.{name} = {file!r}: must be the name of a file beside it"
            )
    return mapping


def _read_header(where: str, file: str, size: int, read: ReadRange) -> dict[str, TensorEntry]:
    start = read(file, 0, min(size, 1024))
    if start.startswith(LFS_POINTER):
        raise WeightFileError(f"{where}: is a Git LFS pointer, not the file; fetch it with: git lfs pull")
    length = int.from_bytes(start[:8], "little")
    if size < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
        raise WeightFileError(f"{where}: is no whole safetensors file ({size:,} bytes); fetch it anew")
    try:
        header: dict[str, Any] = json.loads(read(file, 8, length), object_pairs_hook=_once)
        header.pop("__metadata__", None)
        entries = {name: _entry(file, value) for name, value in header.items()}
        spans = sorted(tuple(value["data_offsets"]) for value in header.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightFileError(
            f"{where}: its header is not one of safetensors ({problem}); fetch it anew"
        ) from error
    end = 0
    for begin, stop in spans:
        if begin != end:
            raise WeightFileError(f"{where}: its tensors do not follow each other; fetch it anew")
        end = stop
    if size != 8 + length + end:
        raise WeightFileError(
            f"{where}: has {size:,} bytes, its header says {8 + length + end:,}; the file was cut or added to: fetch it anew"
        )
    return entries


def _entry(file: str, value: dict[str, Any]) -> TensorEntry:
    dtype, shape, (begin, stop) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, stop)):
        raise ValueError(f"shape {shape} at {begin} .. {stop}")
    if dtype in _BYTES and stop - begin != math.prod(shape) * _BYTES[dtype]:
        raise ValueError(f"{dtype} of shape {shape} in {stop - begin} bytes")
    return TensorEntry(file=file, dtype=str(dtype), shape=shape)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields
