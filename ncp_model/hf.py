"""Published weights as safetensors, both ways: OLMo 3's names and the NCP release's names (docs/model.md 2.12).

Loading refuses missing, unexpected, misshapen and non-finite tensors by name, and damaged files by theirs
(`ncp_model.hf_headers`), before it touches a parameter. F32, F16 and BF16 become the model's own dtype; nothing else does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from curriculum.model_spec import ModelSpec
from ncp_model.hf_config import read_config, spec_of_config, write_config
from ncp_model.hf_headers import check_tensors, read_headers
from ncp_model.hf_names import Binding, WeightFileError, bindings_of, listed, olmo3_bindings
from ncp_model.init import copy_full_, parameter_name
from ncp_model.model import NCPModel, build_model

SHARD_BYTES = 5_000_000_000


def export_tensors(
    parameters: Mapping[str, Tensor], spec: ModelSpec, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Each published tensor by name, one at a time, from the model's parameters (full tensors, by their own names)."""
    by_tensor: dict[str, list[Binding]] = defaultdict(list)
    for binding in bindings_of(spec):
        by_tensor[binding.tensor].append(binding)
    for name, bindings in by_tensor.items():
        parts = [_part(parameters[b.parameter], b.parameter_index) for b in bindings]
        whole = parts[0] if bindings[0].tensor_index is None else torch.stack(parts)
        yield name, whole.detach().to(dtype or whole.dtype)


def _part(tensor: Tensor, index: int | None) -> Tensor:
    return tensor if index is None else tensor[index]


def save_pretrained(
    parameters: Mapping[str, Tensor],
    spec: ModelSpec,
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write safetensors shards, their index and config.json into `folder`, made if need be; config.json comes last.

    `parameters` is a model's state_dict with full tensors. Never holds more than one shard beside it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shard: dict[str, Tensor] = {}
    shards: list[list[str]] = []
    size = total = 0

    def flush() -> None:
        nonlocal shard, size
        save_file(shard, folder / f"shard-{len(shards)}.partial", metadata={"format": "pt"})
        shards.append(list(shard))
        shard, size = {}, 0

    for name, tensor in export_tensors(parameters, spec, dtype):
        if shard and size + tensor.nbytes > shard_bytes:
            flush()
        shard[name] = tensor.cpu().clone(
            memory_format=torch.contiguous_format
        )  # a file may not share storage
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    weight_map = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{number}.partial").replace(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    write_config(spec, folder, dtype or next(iter(parameters.values())).dtype)


@torch.no_grad()
def load_pretrained(
    model: nn.Module, spec: ModelSpec, folder: Path | str, *, token_layers_only: bool = False
) -> None:
    """Load a folder of safetensors into a model, sharded or not.

    The names must be the published form of `spec`; with `token_layers_only` they are those of an OLMo 3 whose layers,
    embedding and head become an NCP model's token layers, everything else staying as it is. Raises WeightFileError that
    lists missing, unexpected, misshapen or non-finite tensors, before any parameter of those is touched.
    """
    folder = Path(folder)
    if token_layers_only and spec.encoder_layers % spec.full_attention_every:
        raise WeightFileError(
            f"encoder_layers = {spec.encoder_layers}: must be a multiple of full_attention_every = "
            f"{spec.full_attention_every}, or the local attention pattern would shift against OLMo 3's"
        )
    bindings = olmo3_bindings(spec) if token_layers_only else bindings_of(spec)
    release = spec.concept.enabled and not token_layers_only
    files = (
        {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        if folder.is_dir()
        else {}
    )

    def read_range(name: str, start: int, length: int) -> bytes:
        with open(folder / name, "rb") as file:
            file.seek(start)
            return file.read(length)

    actual = check_tensors(
        str(folder), read_headers(str(folder), files, read_range), spec, bindings, release=release
    )

    def read(tensor: str) -> Tensor:
        name, where = actual[tensor]
        with safe_open(folder / where, framework="pt") as file:
            return file.get_tensor(name)

    by_parameter: dict[str, list[Binding]] = defaultdict(list)
    for binding in bindings:
        by_parameter[binding.parameter].append(binding)
    parameters = {parameter_name(name): parameter for name, parameter in model.named_parameters()}
    bad = [name for name in actual if not bool(torch.isfinite(read(name)).all())]
    if bad:  # before anything is copied, so that a refused folder leaves the model as it was
        raise WeightFileError(f"{folder}: {listed([f'{name} holds NaN or infinity' for name in bad])}")
    for name, parts in by_parameter.items():
        tensors = [_part(read(b.tensor), b.tensor_index) for b in parts]
        copy_full_(parameters[name], tensors[0] if parts[0].parameter_index is None else torch.stack(tensors))


def load_model(
    folder: Path | str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> NCPModel:
    """Build the model that a folder's config.json describes and load its weights."""
    spec = spec_of_config(read_config(Path(folder)))
    model = build_model(spec, device="meta", dtype=dtype).to_empty(device=device)
    load_pretrained(model, spec, folder)
    return model
