"""The published names of a model's tensors: OLMo 3's and the NCP release's (docs/model.md 2.12), and their shapes.

A name map is a list of bindings, each saying that one tensor of a file (or one row of it) is one parameter of the model
(or one slice of it). No torch here: a plan checks a folder of weights by its headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.errors import InputError
from curriculum.model_spec import ModelSpec


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


def published_shapes(spec: ModelSpec, bindings: list[Binding]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the files, by its published name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for binding in bindings:
        shape = parameter_shape(spec, binding.parameter)
        if binding.parameter_index is not None:
            shape = shape[1:]
        if binding.tensor_index is not None:
            rows = shapes.get(binding.tensor, (0,))[0]
            shape = (max(rows, binding.tensor_index + 1), *shape)
        shapes[binding.tensor] = shape
    return shapes


def parameter_shape(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """The shape of the parameter `name` of the model that `spec` describes."""
    d, ffn = spec.hidden_size, spec.intermediate_size
    parts = name.split(".")
    last = ".".join(parts[-2:])
    if name in ("embed_tokens.weight", "lm_head.weight"):
        return (spec.vocab_size, d)
    if name.startswith("predictor."):
        segments, entries = spec.concept.segments, spec.concept.entries
        return {
            "head_weight": (segments, entries, d),
            "head_bias": (segments, entries),
            "codebook": (segments, entries, spec.segment_size),
        }[parts[1]]
    if name == "fusion.alpha":
        return (1,)
    if parts[-1] == "gate_logits":
        return (2,)
    if last in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"):
        return (d, d)
    if last in ("gate_proj.weight", "up_proj.weight"):
        return (ffn, d)
    if last == "down_proj.weight":
        return (d, ffn)
    if last in ("q_norm.weight", "k_norm.weight"):
        return (d,) if spec.qk_norm == "layer" else (spec.head_dim,)
    if parts[-1] in ("static", "w1", "w2"):
        sources = _sources(spec, parts)
        return {"static": (sources,), "w1": (sources, d), "w2": (sources, sources)}[parts[-1]]
    return (d,)


def _sources(spec: ModelSpec, parts: list[str]) -> int:
    """How many states a route reads: every one before it in its tower and the tower's input, or another tower's raw ones."""
    tower, layer, route = parts[0], int(parts[1]), parts[2]
    if route == "irc":
        return layer + 2
    if route == "read_concept":
        return spec.concept_layers
    return spec.encoder_layers - (tower == "concept")


def listed(problems: list[str], limit: int = 20) -> str:
    """The first of `problems`, and how many more there are."""
    rest = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + rest
