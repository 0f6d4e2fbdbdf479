"""Published weights: parity with transformers' OLMo 3, bit-exact round trips, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, NcpSpec, VqSpec
from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.hf import (
    WeightFileError,
    bindings_of,
    export_tensors,
    load_model,
    load_pretrained,
    save_pretrained,
)
from ncp_model.hf_config import (
    ConfigError,
    olmo3_config,
    read_config,
    release_config,
    spec_of_config,
    write_config,
)
from ncp_model.hf_names import published_shapes

OLMO3_NEEDED = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "sliding_window",
}

TINY = dataclasses.replace(ModelSpec.preset("tiny"), encoder_layers=2, concept_layers=2, decoder_layers=4)
VANILLA = dataclasses.replace(
    TINY,
    concept_layers=0,
    full_attention_every=4,
    encoder_layers=4,
    concept=ConceptSpec(enabled=False),
    ncp=NcpSpec(weight=0.0),
    vq=VqSpec(weight=0.0),
    irc=IrcSpec(enabled=False),
    crc=CrcSpec(enabled=False),
)


def shuffled(spec: ModelSpec, seed: int = 1) -> NCPModel:
    """Every parameter random, so that no two tensors of one shape are alike."""
    model = build_model(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def tokens(length: int = 40) -> Tensor:
    return torch.randint(0, 512, (2, length), generator=torch.Generator().manual_seed(0))


def test_the_vanilla_rung_is_transformers_olmo3_both_ways(tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers, a development dependency, is absent"
    )
    model = shuffled(VANILLA)
    save_pretrained(model.state_dict(), VANILLA, tmp_path / "ours")
    theirs = transformers.Olmo3ForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    ids = tokens()
    with torch.no_grad():
        difference = (theirs(ids).logits - model(ids).logits).abs().max()
    assert difference < 1e-4  # 40 tokens, so the windows of 8 bind in three layers of four

    theirs.save_pretrained(tmp_path / "theirs")
    config = read_config(tmp_path / "theirs")
    config.pop("ncp_model_spec", None)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    again = load_model(tmp_path / "theirs")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    assert again.spec == VANILLA


@pytest.mark.parametrize("spec", [TINY, VANILLA], ids=["ncp", "vanilla"])
def test_round_trip_is_bit_exact_in_shards(tmp_path: Path, spec: ModelSpec) -> None:
    model = shuffled(spec)
    save_pretrained(model.state_dict(), spec, tmp_path, shard_bytes=300_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = load_model(tmp_path)
    assert again.spec == spec
    for (name, value), (other, copied) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert name == other and torch.equal(value, copied), name


def test_every_parameter_of_the_full_model_has_one_published_place() -> None:
    spec = ModelSpec.preset("release")
    bindings = bindings_of(spec)
    parameters = dict(build_model(spec, device="meta").named_parameters())
    assert {b.parameter for b in bindings} == parameters.keys()
    assert len({(b.tensor, b.tensor_index) for b in bindings}) == len(bindings)
    meta = {name: torch.empty(p.shape, device="meta") for name, p in parameters.items()}
    assert sum(tensor.numel() for _, tensor in export_tensors(meta, spec)) == 8_938_363_793


def test_release_tensors_have_the_published_names_and_shapes() -> None:
    tensors = dict(export_tensors(shuffled(TINY).state_dict(), TINY))
    d, dn = TINY.hidden_size, TINY.decoder_layers
    expected = {
        "embed_tokens.weight": (512, d),
        "encoder.layers.1.self_attn.q_norm.weight": (d,),
        "decoder.layers.3.mlp.down_proj.weight": (d, 192),
        "decoder.norm.weight": (d,),
        "concept_predictor.hlm_block.layers.0.post_attention_layernorm.weight": (d,),
        "concept_predictor.prediction_heads.3.weight": (16, d),
        "concept_predictor.prediction_heads.0.bias": (16,),
        "concept_quantizer.codebook.2": (16, d // 4),
        "concept_vq_input_norm.bias": (d,),
        "dd_encoder_self_dd.depth_dds.1.static_a": (3,),
        "concept_predictor.concept_self_dd.depth_dds.0.w1.weight": (2, d),
        "dd_two_route_add.decoder_dds.3.w2.weight": (5, 5),
        "dd_two_route_add.concept_routes.0.concept_norm.bias": (d,),
        "dd_two_route_add.concept_routes.0.final_diag": (d,),
        "concept_predictor.concept_read_encoder_routes.1.residual_diag": (d,),
        "decoder_read_encoder_routes.0.w1.weight": (2, d),
        "decoder_read_concept_routes.0.w2.weight": (2, 2),
        "concept_predictor.concept_read_encoder_shared_source_norm.weight": (d,),
        "decoder_read_concept_shared_source_norm.bias": (d,),
        "fusion_tok_norm.weight": (d,),
        "fusion_norm_alpha": (),
        "final_read_concept_gate_logits": (dn, 2),
    }
    assert {name: tuple(tensors[name].shape) for name in expected} == expected


def test_other_spellings_of_the_release_are_read(tmp_path: Path) -> None:
    model = shuffled(TINY)
    tensors = {f"model.{name}": tensor for name, tensor in export_tensors(model.state_dict(), TINY)}
    norm = tensors.pop("model.concept_predictor.hlm_block.norm.weight")
    tensors["model.concept_predictor.hlm_block.final_layernorm.weight"] = norm
    save_file(tensors, tmp_path / "model.safetensors")
    other = build_model(TINY)
    load_pretrained(other, TINY, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))


def test_olmo3_weights_become_the_token_layers_of_an_ncp_model(tmp_path: Path) -> None:
    spec = dataclasses.replace(TINY, encoder_layers=4, full_attention_every=4)
    vanilla, model = shuffled(VANILLA), shuffled(spec, seed=2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    save_pretrained(vanilla.state_dict(), VANILLA, tmp_path)
    load_pretrained(model, spec, tmp_path, token_layers_only=True)
    assert torch.equal(model.encoder[3].block.mlp.up_proj.weight, vanilla.decoder[3].block.mlp.up_proj.weight)
    assert torch.equal(
        model.decoder[0].block.attention_norm.weight, vanilla.decoder[4].block.attention_norm.weight
    )
    assert torch.equal(model.lm_head.weight, vanilla.lm_head.weight)
    untouched = [
        n for n in before if ".block." not in n and not n.startswith(("embed", "lm_head", "final_norm"))
    ]
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters() if n in untouched)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters() if n.startswith("concept."))

    shifted = dataclasses.replace(spec, encoder_layers=3, decoder_layers=5)
    with pytest.raises(WeightFileError, match="encoder_layers = 3"):
        load_pretrained(build_model(shifted), shifted, tmp_path, token_layers_only=True)


def damage(folder: Path, change: str) -> None:
    file = next(folder.glob("*.safetensors"))
    tensors = load_file(file)
    if change == "missing":
        del tensors["decoder.norm.weight"]
    elif change == "unexpected":
        tensors["decoder.layers.9.self_attn.q_proj.weight"] = torch.zeros(2)
    elif change == "misshapen":
        tensors["concept_quantizer.codebook.1"] = torch.zeros(16, 3)
    else:
        tensors["lm_head.weight"][3, 5] = float("nan")
    (folder / "model.safetensors.index.json").unlink()
    file.unlink()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing decoder.norm.weight"),
        ("unexpected", "unexpected decoder.layers.9.self_attn.q_proj.weight"),
        ("misshapen", r"concept_quantizer.codebook.1 has shape \(16, 3\), the model needs \(16, 16\)"),
        ("nan", "lm_head.weight holds NaN"),
    ],
)
def test_a_bad_weight_file_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, change: str, message: str
) -> None:
    save_pretrained(shuffled(TINY).state_dict(), TINY, tmp_path)
    damage(tmp_path, change)
    model = build_model(TINY)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(WeightFileError, match=message):
        load_pretrained(model, TINY, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightFileError, match="holds neither"):
        load_pretrained(build_model(TINY), TINY, tmp_path)
    with pytest.raises(ConfigError, match="not found"):
        load_model(tmp_path)


def test_the_public_configuration_gives_the_release_preset() -> None:
    assert spec_of_config(release_config(ModelSpec.preset("release"))) == ModelSpec.preset("release")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama'"),
        ({"num_query_groups": 8}, "num_query_groups = 8"),
        ({"rotary_interleaved": True}, "rotary_interleaved = True"),
    ],
)
def test_what_the_network_cannot_do_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of_config({**release_config(ModelSpec.preset("release")), **changes})


RELEASE = ModelSpec.preset("release")


@pytest.mark.parametrize(
    "changes",
    [
        {"conceptlm_hlm_attention_mode": "full"},
        {"conceptlm_v21_residual_flow_route_use_softmax": False},
        {"conceptlm_v21_residual_flow_shared_source_norm": False},
        {"conceptlm_v21_dd_encoder_self_dd": False},
        {"conceptlm_v21_dd_concept_self_dd": 1},
        {"conceptlm_v21_dd_encoder_self_dd_hidden_size": 64},
        {"conceptlm_v21_dd_two_route_add": False},
        {"conceptlm_v21_dd_two_route_add_concept_source": "all"},
        {"conceptlm_v21_dd_two_route_add_every_n_layers": 2},
        {"conceptlm_v21_enable_decoder_read_concept": False},
        {"conceptlm_v21_final_read_concept_gate": False},
        {"conceptlm_hlm_ffn_hidden_size": 4096},
        {"conceptlm_chunk_merge_method": "last"},
        {"conceptlm_layer_norm_option": "rawadd_scalar_gate"},
        {"conceptlm_v22_vq_merge_mode": "hard_top1"},
        {"position_embedding_type": "yarn"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_theta": 10_000.0},
        {"window_size": [4095, 4095]},
        {"window_size": 4095},
        {"window_size": None},
        {"window_attn_skip_freq": [0, 1]},
        {"qk_layernorm": False},
        {"qk_norm_mode": "none"},
        {"qk_norm_weight_size": 128},
        {"num_layers": 40},
        {"tie_word_embeddings": True},
        {"hidden_act": "gelu"},
        {"rms_norm_eps": 1e-5},
        {"weight_key_format": "native_megatron_state_dict"},
        {"quantization_config": {"quant_method": "fp8"}},
        {"conceptlm_route_from_the_future": 0.5},
        {"hidden_size": None},
        {"hidden_size": True},
        {"conceptlm_chunk_size": "4"},
    ],
    ids=lambda changes: "=".join(map(str, *changes.items())),
)
def test_a_field_that_changes_the_graph_is_named(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(ConfigError, match=key):
        spec_of_config({**release_config(RELEASE), **changes})


def test_fields_that_change_nothing_and_sizes_that_are_mapped_are_read() -> None:
    config = {
        **release_config(RELEASE),
        "bos_token_id": 100257,
        "initializer_range": 0.5,
        "conceptlm_some_null": None,
        "rms_norm_eps": RELEASE.norm_eps,
        "conceptlm_v21_residual_flow_route_use_softmax": True,
        "conceptlm_hlm_ffn_hidden_size": RELEASE.intermediate_size,
    }
    assert spec_of_config(config) == RELEASE
    other = spec_of_config(
        {
            **config,
            "window_size": [99, 0],
            "conceptlm_layer_norm_option": "rawadd",
            "conceptlm_v22_vq_merge_mode": "softmax",
            "conceptlm_v21_dd_two_route_add_decoder_use_softmax": False,
        }
    )
    assert (other.window, other.fusion, other.concept.mix) == (99, "add", "softmax")
    assert not other.irc.decoder_softmax


@pytest.mark.parametrize("key", sorted(OLMO3_NEEDED))
def test_a_size_that_an_olmo3_config_does_not_say_is_named(key: str) -> None:
    config = olmo3_config(VANILLA)
    for broken in ({k: v for k, v in config.items() if k != key}, {**config, key: None}, {**config, key: -1}):
        with pytest.raises(ConfigError, match=key):
            spec_of_config(broken)


@pytest.mark.parametrize(
    ("rope", "base"),
    [
        ({"rope_parameters": {"rope_theta": 7.0}}, 7.0),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 7},
                    "sliding_attention": {"rope_theta": 7.0},
                }
            },
            7.0,
        ),
        ({"rope_parameters": None, "rope_theta": 7.0}, 7.0),
        ({"rope_parameters": None}, 500_000.0),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "yarn", "factor": 8.0}}, None),
        ({"rope_parameters": {"rope_theta": 7.0, "factor": 8.0}}, None),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_theta": 8.0}, None),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 7},
                    "sliding_attention": {"rope_theta": 8},
                }
            },
            None,
        ),
        ({"rope_parameters": "default"}, None),
        ({"rope_parameters": {"rope_theta": "7"}}, None),
    ],
)
def test_a_rotation_is_read_in_every_spelling_or_named(rope: dict[str, Any], base: float | None) -> None:
    config = {**olmo3_config(VANILLA), **rope}
    if base is None:
        with pytest.raises(ConfigError, match="rope_"):
            spec_of_config(config)
    else:
        assert spec_of_config(config).rope_theta == base


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"num_key_value_heads": 1},
        {"head_dim": 7},
        {"clip_qkv": 8.0},
        {"layer_types": ["sliding_attention"]},
        {"sliding_window": "all"},
        {"something_new": True},
        {"quantization_config": {"bits": 8}},
    ],
)
def test_an_olmo3_that_computes_something_else_is_named(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(ConfigError, match=key):
        spec_of_config({**olmo3_config(VANILLA), **changes})


def test_our_own_specification_and_the_published_fields_beside_it_must_agree(tmp_path: Path) -> None:
    write_config(TINY, tmp_path, torch.float32)
    config = read_config(tmp_path)
    assert spec_of_config(config) == TINY
    with pytest.raises(ConfigError, match="conceptlm_chunk_size = 8"):
        spec_of_config({**config, "conceptlm_chunk_size": 8})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "holds a list"),
        (b"{}", "no model_type"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"\xff\xfe{", "not JSON"),
    ],
)
def test_a_config_that_is_no_config_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=f"config.json: .*{message}"):
        read_config(tmp_path)


@pytest.mark.parametrize("spec", [TINY, VANILLA, RELEASE], ids=["ncp", "vanilla", "release"])
@pytest.mark.parametrize("qk_norm", ["layer", "head"])
def test_shapes_without_torch_are_those_of_the_model(spec: ModelSpec, qk_norm: str) -> None:
    spec = dataclasses.replace(spec, qk_norm=qk_norm)
    model = build_model(spec, device="meta")
    real = {name: tuple(tensor.shape) for name, tensor in export_tensors(model.state_dict(), spec)}
    assert published_shapes(spec, bindings_of(spec)) == real
