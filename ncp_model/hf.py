"""Published weights as safetensors, both ways: OLMo 3's names and the NCP release's names (NCP spec 2.12).

A name map is a list of bindings, each saying that one tensor of a file (or one row of it) is one parameter of the model
(or one slice of it). Loading refuses missing, unexpected, misshapen and non-finite tensors by name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from curriculum.errors import InputError
from curriculum.model_spec import ModelSpec
from ncp_model.hf_config import read_config, spec_of_config, write_config
from ncp_model.init import copy_full_, parameter_name
from ncp_model.model import NCPModel, build_model

SHARD_BYTES = 5_000_000_000


class WeightFileError(InputError):
    """Weights on disk that do not fit the model; the message names every offending tensor."""


@dataclass(frozen=True)
class Binding:
    """File tensor `tensor` (or its row `tensor_index`) is parameter `parameter` (or its slice `parameter_index`)."""

    tensor: str
    parameter: str
    tensor_index: int | None = None
    parameter_index: int | None = None


_BLOCK = {
    **{f"self_attn.{x}_proj.weight": f"block.attention.{x}_proj.weight" for x in "qkvo"},
    **{f"self_attn.{x}_norm.weight": f"block.attention.{x}_norm.weight" for x in "qk"},
    **{f"mlp.{x}_proj.weight": f"block.mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
    "post_attention_layernorm.weight": "block.attention_norm.weight",
    "post_feedforward_layernorm.weight": "block.mlp_norm.weight",
}
_IRC = {"static_a": "irc.static", "w1.weight": "irc.weights.w1", "w2.weight": "irc.weights.w2"}
_CRC = {"residual_diag": "diag", "w1.weight": "weights.w1", "w2.weight": "weights.w2"}
_NORM = {"weight": "weight", "bias": "bias"}


def _under(tensor: str, parameter: str, names: Mapping[str, str]) -> list[Binding]:
    return [Binding(f"{tensor}.{theirs}", f"{parameter}.{ours}") for theirs, ours in names.items()]


def olmo3_bindings(spec: ModelSpec) -> list[Binding]:
    """OLMo 3's names: the whole of a vanilla model, or the token layers, embedding and head of an NCP model."""
    bindings = [
        Binding("model.embed_tokens.weight", "embed_tokens.weight"),
        Binding("model.norm.weight", "final_norm.weight"),
        Binding("lm_head.weight", "lm_head.weight"),
    ]
    encoder_layers = spec.encoder_layers if spec.concept.enabled else 0
    for layer in range(spec.token_layers):
        inside = layer < encoder_layers
        tower = f"encoder.{layer}" if inside else f"decoder.{layer - encoder_layers}"
        bindings += _under(f"model.layers.{layer}", tower, _BLOCK)
    return bindings


def release_bindings(spec: ModelSpec) -> list[Binding]:
    """The NCP release's names, for every parameter of an NCP model."""
    bindings = [
        Binding("embed_tokens.weight", "embed_tokens.weight"),
        Binding("lm_head.weight", "lm_head.weight"),
        Binding("decoder.norm.weight", "final_norm.weight"),
        Binding("concept_predictor.hlm_block.norm.weight", "concept_norm.weight"),
        *_under("concept_vq_input_norm", "vq_norm", _NORM),
    ]
    towers = (
        ("encoder.layers", "dd_encoder_self_dd.depth_dds", "encoder", spec.encoder_layers),
        (
            "concept_predictor.hlm_block.layers",
            "concept_predictor.concept_self_dd.depth_dds",
            "concept",
            spec.concept_layers,
        ),
        ("decoder.layers", "dd_two_route_add.decoder_dds", "decoder", spec.decoder_layers),
    )
    for blocks, routes, tower, layers in towers:
        for n in range(layers):
            bindings += _under(f"{blocks}.{n}", f"{tower}.{n}", _BLOCK)
            bindings += _under(f"{routes}.{n}", f"{tower}.{n}", _IRC) if spec.irc.enabled else []
    for s in range(spec.concept.segments):
        head = f"concept_predictor.prediction_heads.{s}"
        bindings += [
            Binding(f"{head}.weight", "predictor.head_weight", parameter_index=s),
            Binding(f"{head}.bias", "predictor.head_bias", parameter_index=s),
            Binding(f"concept_quantizer.codebook.{s}", "predictor.codebook", parameter_index=s),
        ]
    if spec.fusion == "normed_add":
        bindings += _under("fusion_tok_norm", "fusion.token_norm", _NORM)
        bindings += _under("fusion_hl_norm", "fusion.concept_norm", _NORM)
        bindings.append(Binding("fusion_norm_alpha", "fusion.alpha", parameter_index=0))
    return bindings + (_route_bindings(spec) if spec.crc.enabled else [])


def _route_bindings(spec: ModelSpec) -> list[Binding]:
    prefix = "concept_predictor.concept_read_encoder"
    bindings = _under(f"{prefix}_shared_source_norm", "route_norms.encoder_to_concept", _NORM)
    bindings += _under("decoder_read_encoder_shared_source_norm", "route_norms.encoder_to_decoder", _NORM)
    bindings += _under("decoder_read_concept_shared_source_norm", "route_norms.concept_to_decoder", _NORM)
    for n in range(spec.concept_layers):
        bindings += _under(f"{prefix}_routes.{n}", f"concept.{n}.read_encoder", _CRC)
    for n in range(spec.decoder_layers):
        bindings += _under(f"decoder_read_encoder_routes.{n}", f"decoder.{n}.read_encoder", _CRC)
        bindings += _under(f"decoder_read_concept_routes.{n}", f"decoder.{n}.read_concept", _CRC)
        if spec.crc.final_route:
            route, final = f"dd_two_route_add.concept_routes.{n}", f"decoder.{n}.final_concept"
            bindings += _under(f"{route}.concept_norm", f"{final}.norm", _NORM)
            bindings.append(Binding(f"{route}.final_diag", f"{final}.diag"))
            bindings.append(Binding("final_read_concept_gate_logits", f"{final}.gate_logits", tensor_index=n))
    return bindings


def bindings_of(spec: ModelSpec) -> list[Binding]:
    """The published form of a model: the release's names with a Concept Module, OLMo 3's without."""
    if spec.concept.enabled:
        return release_bindings(spec)
    if spec.irc.enabled:
        raise WeightFileError(
            "irc.enabled = True without a Concept Module: no published form has such tensors"
        )
    return olmo3_bindings(spec)


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


def _read_tensors(folder: Path) -> tuple[dict[str, Path], Callable[[str], Tensor]]:
    """Where each tensor of a folder lies, and a function that reads one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    elif (folder / "model.safetensors").exists():
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            files = dict.fromkeys(file.keys(), folder / "model.safetensors")
    else:
        raise WeightFileError(f"{folder}: holds neither model.safetensors.index.json nor model.safetensors")

    def read(name: str) -> Tensor:
        with safe_open(files[name], framework="pt") as file:
            return file.get_tensor(name)

    return files, read


def _canonical(name: str, release: bool) -> str:
    """Undo the spellings in which exporters differ: a wrapper's prefix, and the concept tower's norm."""
    if release:
        name = name.removeprefix("model.")
        name = name.replace("hlm_block.final_layernorm.", "hlm_block.norm.")
    return name


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
    files, read = _read_tensors(folder)
    actual = {_canonical(name, release): name for name in files}
    expected = {binding.tensor for binding in bindings}
    problems = [f"missing {name}" for name in sorted(expected - actual.keys())]
    problems += [f"unexpected {actual[name]}" for name in sorted(actual.keys() - expected)]
    if problems:
        raise WeightFileError(f"{folder}: {_listed(problems)}")

    by_parameter: dict[str, list[Binding]] = defaultdict(list)
    for binding in bindings:
        by_parameter[binding.parameter].append(binding)
    parameters = {parameter_name(name): parameter for name, parameter in model.named_parameters()}
    problems = []
    for check in (
        True,
        False,
    ):  # shapes and values first, so that a refused folder leaves the model as it was
        for name, parts in by_parameter.items():
            shape = tuple(parameters[name].shape)
            tensors = [_part(read(actual[b.tensor]), b.tensor_index) for b in parts]
            wanted = shape if parts[0].parameter_index is None else shape[1:]
            if check:
                problems += _problems(parts, tensors, wanted)
            else:
                whole = tensors[0] if parts[0].parameter_index is None else torch.stack(tensors)
                copy_full_(parameters[name], whole)
        if problems:
            raise WeightFileError(f"{folder}: {_listed(problems)}")


def _problems(parts: list[Binding], tensors: list[Tensor], wanted: tuple[int, ...]) -> list[str]:
    found = []
    for binding, tensor in zip(parts, tensors, strict=True):
        if tuple(tensor.shape) != wanted:
            found.append(f"{binding.tensor} has shape {tuple(tensor.shape)}, the model needs {wanted}")
        elif not bool(torch.isfinite(tensor).all()):
            found.append(f"{binding.tensor} holds NaN or infinity")
    return found


def _listed(problems: list[str], limit: int = 20) -> str:
    rest = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + rest


def load_model(
    folder: Path | str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> NCPModel:
    """Build the model that a folder's config.json describes and load its weights."""
    spec = spec_of_config(read_config(Path(folder)))
    model = build_model(spec, device="meta", dtype=dtype).to_empty(device=device)
    load_pretrained(model, spec, folder)
    return model
