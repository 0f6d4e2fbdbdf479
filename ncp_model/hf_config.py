"""config.json of both published forms, to and from a ModelSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from curriculum.errors import InputError
from curriculum.model_spec import (
    ConceptSpec,
    CrcSpec,
    IrcSpec,
    ModelSpec,
    NcpSpec,
    VqSpec,
)

# Our own specification, complete, beside the fields that other readers of config.json know.
SPEC_KEY = "ncp_model_spec"


class ConfigError(InputError):
    """A config.json that this network cannot be built from; the message names the field."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"{path}: not found; a folder of weights needs its config.json")
    return json.loads(path.read_text())


def write_config(spec: ModelSpec, folder: Path, dtype: torch.dtype) -> None:
    """Write config.json: the published fields of the form that `spec` has, and the specification itself."""
    fields = release_config(spec) if spec.concept.enabled else olmo3_config(spec)
    fields |= {"dtype": str(dtype).removeprefix("torch."), SPEC_KEY: spec.to_dict()}
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def olmo3_config(spec: ModelSpec) -> dict[str, Any]:
    """What transformers' Olmo3 reads."""
    every = spec.full_attention_every
    kinds = [
        "full_attention" if (n + 1) % every == 0 else "sliding_attention" for n in range(spec.token_layers)
    ]
    rope = {"rope_type": "default", "rope_theta": spec.rope_theta}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.token_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_heads,
        "max_position_embeddings": spec.max_sequence_length,
        "rms_norm_eps": spec.norm_eps,
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
        "sliding_window": spec.window if spec.window_includes_self else spec.window + 1,
        "layer_types": kinds,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


def release_config(spec: ModelSpec) -> dict[str, Any]:
    """What the public NCP checkpoint's readers check (its serving code's configuration contract)."""
    return {
        "architectures": ["NCPOlmo3ForCausalLM"],
        "model_type": "ncp_olmo3",
        "weight_key_format": "huggingface_state_dict",
        "conceptlm_backbone": "olmo3",
        "hidden_size": spec.hidden_size,
        "ffn_hidden_size": spec.intermediate_size,
        "num_layers": spec.token_layers,
        "num_attention_heads": spec.num_heads,
        "num_query_groups": spec.num_heads,
        "vocab_size": spec.vocab_size,
        "max_sequence_length": spec.max_sequence_length,
        "layernorm_epsilon": spec.norm_eps,
        "qk_layernorm": True,
        "qk_norm_mode": "full_hidden" if spec.qk_norm == "layer" else "per_head",
        "qk_norm_weight_size": spec.hidden_size if spec.qk_norm == "layer" else spec.head_dim,
        "position_embedding_type": "rope",
        "rotary_base": spec.rope_theta,
        "rotary_percent": 1.0,
        "rotary_interleaved": False,
        "window_size": [spec.window - 1 if spec.window_includes_self else spec.window, 0],
        "window_attn_skip_freq": spec.full_attention_every,
        "conceptlm_encoder_layers": spec.encoder_layers,
        "conceptlm_special_layers": spec.concept_layers,
        "conceptlm_decoder_layers": spec.decoder_layers,
        "conceptlm_chunk_size": spec.concept.chunk_size,
        "conceptlm_shift_feature": True,
        "conceptlm_chunk_merge_method": "meanpooling",
        "conceptlm_layer_norm_option": spec.fusion,
        "conceptlm_hlm_attention_mode": "backbone_window",
        "conceptlm_hlm_ffn_hidden_size": None,
        "conceptlm_v22_vq_num_codebooks": spec.concept.segments,
        "conceptlm_v22_vq_codebook_size": spec.concept.entries,
        "conceptlm_v22_vq_merge_mode": spec.concept.mix,
        "conceptlm_v21_dd_self_dd_mode": "dd",
        "conceptlm_v21_dd_encoder_self_dd": spec.irc.enabled,
        "conceptlm_v21_dd_concept_self_dd": spec.irc.enabled,
        "conceptlm_v21_dd_two_route_add": spec.irc.enabled and spec.crc.enabled and spec.crc.final_route,
        "conceptlm_v21_dd_two_route_add_decoder_use_softmax": spec.irc.decoder_softmax,
        "conceptlm_v21_enable_concept_read_encoder": spec.crc.enabled,
        "conceptlm_v21_enable_decoder_read_encoder": spec.crc.enabled,
        "conceptlm_v21_enable_decoder_read_concept": spec.crc.enabled,
        "conceptlm_v21_final_read_concept_gate": spec.crc.enabled and spec.crc.final_route,
    }


def spec_of_config(config: Mapping[str, Any]) -> ModelSpec:
    """The ModelSpec of a config.json, ours or a published one. Raises ConfigError for what the network cannot do."""
    if SPEC_KEY in config:
        return ModelSpec.from_dict(config[SPEC_KEY])
    kind = config.get("model_type")
    if kind == "olmo3":
        return _spec_of_olmo3(config)
    if kind == "ncp_olmo3":
        return _spec_of_release(config)
    raise ConfigError(f"model_type = {kind!r}: use a folder of model_type olmo3 or ncp_olmo3")


def _expect(config: Mapping[str, Any], key: str, value: Any) -> None:
    if config.get(key, value) != value:
        raise ConfigError(f"{key} = {config[key]!r}: the network has {value!r}")


def _spec_of_olmo3(config: Mapping[str, Any]) -> ModelSpec:
    layers = config["num_hidden_layers"]
    for key, value in (
        ("num_key_value_heads", config["num_attention_heads"]),
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("tie_word_embeddings", False),
        ("rope_scaling", None),
    ):
        _expect(config, key, value)
    kinds = config.get("layer_types")
    full = [n + 1 for n, kind in enumerate(kinds or []) if kind == "full_attention"]
    every = full[0] if full else (4 if kinds is None else layers + 1)
    spec = ModelSpec(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        encoder_layers=layers // 2,
        concept_layers=0,
        decoder_layers=layers - layers // 2,
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_position_embeddings"],
        rope_theta=_rope_theta(config),
        norm_eps=config["rms_norm_eps"],
        window=config["sliding_window"],
        full_attention_every=every,
        concept=ConceptSpec(enabled=False),
        ncp=NcpSpec(weight=0.0),
        vq=VqSpec(weight=0.0),
        irc=IrcSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    )
    if kinds is not None:
        _expect(config, "layer_types", olmo3_config(spec)["layer_types"])
    return spec


def _rope_theta(config: Mapping[str, Any]) -> float:
    """One base for all layers; scaled rotations (long-context checkpoints) are refused."""
    parameters = config.get("rope_parameters")
    if parameters is None:
        return float(config.get("rope_theta", 500_000.0))
    entries = [parameters] if "rope_type" in parameters else [*parameters.values()]
    bases = {float(entry.get("rope_theta", 500_000.0)) for entry in entries}
    if any(entry.get("rope_type", "default") != "default" for entry in entries) or len(bases) != 1:
        raise ConfigError(f"rope_parameters = {parameters!r}: the network rotates by one unscaled base")
    return bases.pop()


def _spec_of_release(config: Mapping[str, Any]) -> ModelSpec:
    for key, value in (
        ("num_query_groups", config["num_attention_heads"]),
        ("conceptlm_backbone", "olmo3"),
        ("conceptlm_shift_feature", True),
        ("conceptlm_chunk_merge_method", "meanpooling"),
        ("conceptlm_v21_dd_self_dd_mode", "dd"),
        ("position_embedding_type", "rope"),
        ("rotary_interleaved", False),
        ("rotary_percent", 1.0),
    ):
        _expect(config, key, value)
    release = ModelSpec.preset("release")
    return ModelSpec(
        hidden_size=config["hidden_size"],
        intermediate_size=config["ffn_hidden_size"],
        num_heads=config["num_attention_heads"],
        encoder_layers=config["conceptlm_encoder_layers"],
        concept_layers=config["conceptlm_special_layers"],
        decoder_layers=config["conceptlm_decoder_layers"],
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_sequence_length"],
        rope_theta=float(config.get("rotary_base", release.rope_theta)),
        norm_eps=config.get("layernorm_epsilon", release.norm_eps),
        qk_norm="head" if config.get("qk_norm_mode") == "per_head" else "layer",
        window=config["window_size"][0],
        window_includes_self=False,
        full_attention_every=config["window_attn_skip_freq"],
        fusion=config["conceptlm_layer_norm_option"],
        z_loss=release.z_loss,
        concept=ConceptSpec(
            chunk_size=config["conceptlm_chunk_size"],
            segments=config["conceptlm_v22_vq_num_codebooks"],
            entries=config["conceptlm_v22_vq_codebook_size"],
            mix=config["conceptlm_v22_vq_merge_mode"],
            codebook_init="normal",
        ),
        ncp=release.ncp,
        irc=IrcSpec(decoder_softmax=config.get("conceptlm_v21_dd_two_route_add_decoder_use_softmax", True)),
    )
