"""The published counts: parameters by component, FLOPs per token, and no torch needed for either."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec
from ncp_model import ModelSpec, build_model
from ncp_model.flops import (
    adaptation_parameters,
    flops_per_token,
    mean_visible_keys,
    parameter_counts,
    total_parameters,
)

NCP = ModelSpec.preset("olmo3-7b-ncp")
COMPONENTS = {  # docs/model.md 4
    "embedding": 410_738_688,
    "lm_head": 410_738_688,
    "encoder_blocks": 3_238_264_832,
    "decoder_blocks": 3_238_264_832,
    "final_norm": 4_096,
    "concept_blocks": 1_619_132_416,
    "concept_norm": 4_096,
    "prediction_heads": 16_781_312,
    "codebooks": 524_288,
    "vq_norm": 8_192,
    "irc_encoder": 624_528,
    "irc_concept": 180_552,
    "irc_decoder": 624_528,
    "crc_encoder_to_concept": 526_088,
    "crc_encoder_to_decoder": 1_118_208,
    "crc_concept_to_decoder": 590_848,
    "route_source_norms": 24_576,
    "final_concept_routes": 196_608,
    "fusion_norms": 16_384,
    "fusion_alpha": 1,
    "gates": 32,
}
# Which parameters of the model make up which component.
PLACES = {
    "embedding": ("embed_tokens.",),
    "lm_head": ("lm_head.",),
    "encoder_blocks": ("encoder.*.block.",),
    "decoder_blocks": ("decoder.*.block.",),
    "concept_blocks": ("concept.*.block.",),
    "final_norm": ("final_norm.",),
    "concept_norm": ("concept_norm.",),
    "prediction_heads": ("predictor.head_weight", "predictor.head_bias"),
    "codebooks": ("predictor.codebook",),
    "vq_norm": ("vq_norm.",),
    "irc_encoder": ("encoder.*.irc.",),
    "irc_concept": ("concept.*.irc.",),
    "irc_decoder": ("decoder.*.irc.",),
    "crc_encoder_to_concept": ("concept.*.read_encoder.",),
    "crc_encoder_to_decoder": ("decoder.*.read_encoder.",),
    "crc_concept_to_decoder": ("decoder.*.read_concept.",),
    "route_source_norms": ("route_norms.",),
    "final_concept_routes": ("decoder.*.final_concept.norm.", "decoder.*.final_concept.diag"),
    "gates": ("decoder.*.final_concept.gate_logits",),
    "fusion_norms": ("fusion.token_norm.", "fusion.concept_norm."),
    "fusion_alpha": ("fusion.alpha",),
}


def without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def test_the_full_model_has_every_component_at_its_published_size() -> None:
    assert parameter_counts(NCP) == COMPONENTS
    assert total_parameters(NCP) == 8_938_363_793
    assert adaptation_parameters(NCP) == 17_305_600
    counted = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in build_model(NCP, device="meta").named_parameters():
        (component,) = [c for c, prefixes in PLACES.items() if without_numbers(name).startswith(prefixes)]
        counted[component] += parameter.numel()
    assert counted == COMPONENTS


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("olmo3-7b-vanilla-32", 7_298_011_136),
        ("olmo3-7b-vanilla-34", 7_702_794_240),
        ("olmo3-7b-vanilla-40", 8_917_143_552),
        ("release", 8_938_363_793),
    ],
)
def test_presets_have_their_published_sizes(name: str, parameters: int) -> None:
    spec = ModelSpec.preset(name)
    assert total_parameters(spec) == parameters
    assert sum(p.numel() for p in build_model(spec, device="meta").parameters()) == parameters


TINY = ModelSpec.preset("tiny")


@pytest.mark.parametrize(
    "spec",
    [
        TINY,
        dataclasses.replace(TINY, qk_norm="head", fusion="add", encoder_layers=3, decoder_layers=4),
        dataclasses.replace(TINY, crc=CrcSpec(final_route=False)),
        dataclasses.replace(TINY, irc=IrcSpec(enabled=False), crc=CrcSpec(enabled=False)),
        dataclasses.replace(TINY, concept=ConceptSpec(enabled=False), crc=CrcSpec(enabled=False)),
    ],
    ids=["tiny", "head_norm", "no_final_route", "no_routes", "vanilla_irc"],
)
def test_the_closed_form_counts_what_is_built(spec: ModelSpec) -> None:
    assert total_parameters(spec) == sum(p.numel() for p in build_model(spec, device="meta").parameters())


def test_flops_table() -> None:
    """docs/model.md 5, to every printed digit."""
    vanilla = {n: flops_per_token(ModelSpec.preset(f"olmo3-7b-vanilla-{n}"), 8192) for n in (32, 34, 40)}
    ncp = flops_per_token(NCP, 8192)
    giga = {n: round(f.blocks / 1e9, 3) for n, f in vanilla.items()}
    assert giga == {32: 44.091, 34: 46.822, 40: 55.114}
    assert round(ncp.blocks / 1e9, 3) == 46.620
    assert round((ncp.blocks + ncp.concept_heads + ncp.routes) / 1e9, 3) == 46.683
    block = vanilla[32].blocks / 32
    assert [round(f.blocks / block, 2) for f in (vanilla[34], ncp)] == [33.98, 33.84]
    largest = vanilla[40]
    assert [round(f.blocks / largest.blocks, 3) for f in (vanilla[32], vanilla[34], ncp)] == [
        0.800,
        0.850,
        0.846,
    ]
    with_head = [
        (f.blocks + f.lm_head) / (largest.blocks + largest.lm_head) for f in (vanilla[32], vanilla[34], ncp)
    ]
    assert [round(share, 3) for share in with_head] == [0.809, 0.856, 0.852]


@pytest.mark.parametrize(
    ("hidden_size", "layers", "giga"), [(1408, 4, 1.771), (1792, 8, 5.401), (2176, 8, 7.641)]
)
def test_flops_of_the_published_ladder(hidden_size: int, layers: int, giga: float) -> None:
    wide = -(-8 * hidden_size // 3)
    spec = dataclasses.replace(
        NCP,
        hidden_size=hidden_size,
        intermediate_size=-(-wide // 256) * 256,
        num_heads=hidden_size // 128,
        encoder_layers=layers,
        concept_layers=layers,
        decoder_layers=layers,
        concept=ConceptSpec(segments=hidden_size // 128),
    )
    assert round(flops_per_token(spec, 8192).blocks / 1e9, 3) == giga


def test_visible_keys_are_counted_exactly() -> None:
    assert mean_visible_keys(8192, None) == 4096.5
    assert mean_visible_keys(8192, 4096) == 3072.25
    for length, window in ((7, 3), (3, 7), (5, 5)):
        assert mean_visible_keys(length, window) == sum(min(t + 1, window) for t in range(length)) / length


def test_pricing_a_model_does_not_load_torch() -> None:
    code = (
        "import sys, ncp_model.flops; from ncp_model import ModelSpec; "
        "ncp_model.flops.total_parameters(ModelSpec.preset('tiny')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
