"""config.json of both published forms, to and from a ModelSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.errors import InputError
from curriculum.model_spec import (
    ConceptSpec,
    CrcSpec,
    IrcSpec,
    ModelSpec,
    NcpSpec,
    VqSpec,
)
from ncp_model.hf_fields import (
    BOTH_ONLY,
    HARMLESS,
    OLMO3_MAPPED,
    OLMO3_ONLY,
    RELEASE_MAPPED,
    RELEASE_ONLY,
    WEIGHT_KEY_FORMATS,
)

if TYPE_CHECKING:
    import torch

# Our own specification, complete, beside the fields that other readers of config.json know.
SPEC_KEY = "ncp_model_spec"
LFS_POINTER = b"version https://git-lfs"


class ConfigError(InputError):
    """A config.json that this network cannot be built from; the message names the field."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ConfigError."""
    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"{path}: not found; a folder of weights needs its config.json")
    return parse_config(str(path), path.read_bytes())


def parse_config(where: str, data: bytes) -> dict[str, Any]:
    """The fields of a config.json that lies at `where`. Raises ConfigError."""
    config = parse_object(where, data)
    if SPEC_KEY not in config and "model_type" not in config:
        raise ConfigError(f"{where}: has no model_type; use a folder of model_type olmo3 or ncp_olmo3")
    return config


def parse_object(where: str, data: bytes) -> dict[str, Any]:
    """The JSON object at `where`. Raises ConfigError that says what is there instead."""
    if data.startswith(LFS_POINTER):
        raise ConfigError(f"{where}: is a Git LFS pointer, not the file; fetch it with: git lfs pull")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})".replace("\n", " ")) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: holds a {type(value).__name__}, not an object of fields")
    return value


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
        return _own_spec(config)
    kind = config.get("model_type")
    if kind == "olmo3":
        return _spec_of_olmo3(config)
    if kind in ("ncp_olmo3", "conceptlm_v22_vq"):
        return _spec_of_release(config)
    raise ConfigError(f"model_type = {kind!r}: use a folder of model_type olmo3 or ncp_olmo3")


def _own_spec(config: Mapping[str, Any]) -> ModelSpec:
    if not isinstance(config[SPEC_KEY], Mapping):
        raise ConfigError(f"{SPEC_KEY} = {config[SPEC_KEY]!r}: must be the model's specification")
    spec = ModelSpec.from_dict(config[SPEC_KEY])
    published = release_config(spec) if spec.concept.enabled else olmo3_config(spec)
    for key, value in published.items():
        if config.get(key, value) != value:
            raise ConfigError(
                f"{key} = {config[key]!r}: {SPEC_KEY} in the same file says {value!r}; they must agree"
            )
    return spec


def _expect(config: Mapping[str, Any], key: str, value: Any) -> None:
    found = config.get(key, value)
    # 1 is no True and 0 no False: a field of another kind was meant otherwise.
    if found is not None and (found != value or isinstance(found, bool) != isinstance(value, bool)):
        raise ConfigError(f"{key} = {found!r}: the network has {value!r}")


def _expect_known(
    config: Mapping[str, Any],
    only: Mapping[str, Any],
    mapped: frozenset[str],
    harmless: frozenset[str] = HARMLESS,
) -> None:
    for key, value in only.items():
        _expect(config, key, value)
    for key, value in config.items():
        if value is not None and key not in only and key not in mapped and key not in harmless:
            raise ConfigError(
                f"{key} = {value!r}: not a field this network knows, so it may compute something else; remove the field "
                "if it changes nothing"
            )


def _number(config: Mapping[str, Any], key: str, kind: type = int) -> Any:
    """A positive number that has to be there."""
    value = config.get(key)
    kinds = (int, float) if kind is float else (int,)
    if key not in config:
        raise ConfigError(f"{key}: missing; the network cannot be built without it")
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ConfigError(
            f"{key} = {value!r}: must be {'a number' if kind is float else 'an integer'} above 0"
        )
    return kind(value)


def _build(fields: Mapping[str, Any]) -> ModelSpec:
    try:
        return ModelSpec(**fields)
    except InputError as error:
        raise ConfigError(f"these sizes do not go together: {error}") from error


def _spec_of_olmo3(config: Mapping[str, Any]) -> ModelSpec:
    _expect_known(config, BOTH_ONLY | OLMO3_ONLY, OLMO3_MAPPED)
    layers, heads, hidden = (
        _number(config, key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    _expect(config, "num_key_value_heads", heads)
    _expect(config, "head_dim", hidden // heads)
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
        raise ConfigError(f"layer_types = {kinds!r}: must list one kind for each of the {layers} layers")
    full = [n + 1 for n, kind in enumerate(kinds or []) if kind == "full_attention"]
    every = full[0] if full else (4 if kinds is None else layers + 1)
    positions = _number(config, "max_position_embeddings")
    spec = _build(
        {
            "hidden_size": hidden,
            "intermediate_size": _number(config, "intermediate_size"),
            "num_heads": heads,
            "encoder_layers": layers // 2,
            "concept_layers": 0,
            "decoder_layers": layers - layers // 2,
            "vocab_size": _number(config, "vocab_size"),
            "max_sequence_length": positions,
            "rope_theta": _rope_theta(config),
            "norm_eps": _number(config, "rms_norm_eps", float),
            "window": positions if every == 1 else _number(config, "sliding_window"),
            "full_attention_every": every,
            "concept": ConceptSpec(enabled=False),
            "ncp": NcpSpec(weight=0.0),
            "vq": VqSpec(weight=0.0),
            "irc": IrcSpec(enabled=False),
            "crc": CrcSpec(enabled=False),
        }
    )
    if kinds is not None:
        _expect(config, "layer_types", olmo3_config(spec)["layer_types"])
    return spec


def _rope_theta(config: Mapping[str, Any]) -> float:
    """One base for all layers; scaled rotations (long-context checkpoints) are refused.

    `rope_parameters` is one set for all kinds of layers, or a set for each kind.
    """
    base = config.get("rope_theta")
    parameters = config.get("rope_parameters")
    refusal = f"rope_parameters = {parameters!r}: the network rotates by one unscaled base"
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigError(refusal)
    nested = bool(parameters) and all(isinstance(entry, Mapping) for entry in parameters.values())
    bases = [] if base is None else [base]
    for entry in parameters.values() if parameters and nested else [parameters or {}]:
        plain = {"rope_theta": None, "rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
        for key, value in entry.items():
            if value is not None and (key not in plain or plain[key] not in (None, value)):
                raise ConfigError(refusal)
        if entry.get("rope_theta") is not None:
            bases.append(entry["rope_theta"])
    for value in bases:
        _number({"rope_theta": value}, "rope_theta", float)
    if len(set(map(float, bases))) > 1:
        raise ConfigError(refusal)
    return float(bases[0]) if bases else 500_000.0


def _spec_of_release(config: Mapping[str, Any]) -> ModelSpec:
    _expect_known(config, BOTH_ONLY | RELEASE_ONLY, RELEASE_MAPPED)
    release = ModelSpec.preset("release")
    hidden, heads, ffn, encoder, decoder, length = (
        _number(config, key)
        for key in (
            "hidden_size",
            "num_attention_heads",
            "ffn_hidden_size",
            "conceptlm_encoder_layers",
            "conceptlm_decoder_layers",
            "max_sequence_length",
        )
    )
    eps = _number({"layernorm_epsilon": release.norm_eps, **config}, "layernorm_epsilon", float)
    theta = _number({"rotary_base": release.rope_theta, **config}, "rotary_base", float)
    norm = _choice(config, "qk_norm_mode", {"full_hidden": "layer", "per_head": "head"}, "full_hidden")
    window = config.get("window_size")
    if (
        not isinstance(window, list | tuple)
        or len(window) != 2
        or isinstance(window[0], bool)
        or not isinstance(window[0], int)
        or window[0] < 1
        or window[1] != 0
    ):
        raise ConfigError(f"window_size = {window!r}: the network needs [tokens to the left, 0]")
    for key, value in (
        ("num_query_groups", heads),
        ("num_key_value_heads", heads),
        ("num_layers", encoder + decoder),
        ("num_hidden_layers", encoder + decoder),
        ("intermediate_size", ffn),
        ("conceptlm_hlm_ffn_hidden_size", ffn),
        ("max_position_embeddings", length),
        ("rms_norm_eps", eps),
        ("rope_theta", theta),
        ("head_dim", hidden // heads),
        ("kv_channels", hidden // heads),
        ("qk_norm_weight_size", hidden if norm == "layer" else hidden // heads),
        ("sliding_window", window[0]),
    ):
        _expect(config, key, value)
    _choice(config, "weight_key_format", {name: name for name in WEIGHT_KEY_FORMATS}, WEIGHT_KEY_FORMATS[0])
    softmax = "conceptlm_v21_dd_two_route_add_decoder_use_softmax"
    return _build(
        {
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_heads": heads,
            "encoder_layers": encoder,
            "concept_layers": _number(config, "conceptlm_special_layers"),
            "decoder_layers": decoder,
            "vocab_size": _number(config, "vocab_size"),
            "max_sequence_length": length,
            "rope_theta": theta,
            "norm_eps": eps,
            "qk_norm": norm,
            "window": window[0],
            "window_includes_self": False,
            "full_attention_every": _number(config, "window_attn_skip_freq"),
            "fusion": _choice(
                config,
                "conceptlm_layer_norm_option",
                {"normed_add": "normed_add", "rawadd": "add", "add": "add"},
                "normed_add",
            ),
            "z_loss": release.z_loss,
            "concept": ConceptSpec(
                chunk_size=_number(config, "conceptlm_chunk_size"),
                segments=_number(config, "conceptlm_v22_vq_num_codebooks"),
                entries=_number(config, "conceptlm_v22_vq_codebook_size"),
                mix=_choice(
                    config,
                    "conceptlm_v22_vq_merge_mode",
                    {"raw_logits": "raw_logits", "softmax": "softmax"},
                    release.concept.mix,
                ),
                codebook_init="normal",
            ),
            "ncp": release.ncp,
            "irc": IrcSpec(decoder_softmax=_choice(config, softmax, {True: True, False: False}, True)),
        }
    )


def _choice(config: Mapping[str, Any], key: str, choices: Mapping[Any, Any], absent: Any) -> Any:
    value = config.get(key, absent)
    if not isinstance(value, str | bool) or value not in choices:
        raise ConfigError(f"{key} = {value!r}: the network can be {', '.join(map(repr, choices))}")
    return choices[value]
