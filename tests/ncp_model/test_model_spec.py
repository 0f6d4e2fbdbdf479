"""Specifications: round trips, presets, and errors that name key, value and fix."""

from __future__ import annotations

import dataclasses

import pytest

from curriculum.model_spec import PRESETS, ConceptSpec, CrcSpec, ModelSpec
from curriculum.optimizer_spec import OptimizerSpec


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_dictionary(name: str) -> None:
    spec = ModelSpec.preset(name)
    assert ModelSpec.from_dict(spec.to_dict()) == spec


def test_the_release_preset_sets_every_disputed_switch() -> None:
    """docs/model.md 0.1: what the public checkpoint does, against the recommended defaults."""
    default, release = ModelSpec().to_dict(), ModelSpec.preset("release").to_dict()

    def flat(values: dict, prefix: str = "") -> dict[str, object]:
        items = {}
        for key, value in values.items():
            items |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return items

    changed = {k: v for k, v in flat(release).items() if flat(default)[k] != v}
    assert changed == {
        "window_includes_self": False,
        "z_loss": 0.0,
        "concept.mix": "raw_logits",
        "concept.codebook_init": "normal",
        "ncp.grad_to_codebook": True,
        "irc.decoder_softmax": True,
    }
    same = flat(release)
    assert (same["fusion"], same["irc.cond"], same["ncp.target"], same["concept.rope_stride"]) == (
        "normed_add",
        "state",
        "normed",
        1,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, r"model.num_heads = 5: must divide hidden_size = 64"),
        ({"num_heads": 64}, "odd head size 1"),
        ({"concept": ConceptSpec(segments=5, entries=16)}, "model.concept.segments = 5: must divide"),
        ({"concept": ConceptSpec(segments=4, mix="mean")}, "model.concept.mix = 'mean': use one of softmax"),
        ({"fusion": "concat"}, "model.fusion = 'concat'"),
        ({"encoder_layers": 1}, "model.encoder_layers = 1: crc.enabled"),
        ({"concept": ConceptSpec(enabled=False)}, "set crc.enabled: false"),
        ({"window": 0}, "model.window = 0"),
        ({"norm_eps": 0.0}, "model.norm_eps"),
        ({"decoder_layers": 0}, "model.decoder_layers = 0"),
    ],
)
def test_what_cannot_be_built_is_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ModelSpec.preset("tiny"), **changes)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"model.concept.segment: unknown key; did you mean 'segments'"):
        ModelSpec.from_dict({"concept": {"segment": 4}})
    with pytest.raises(ValueError, match="'olmo': use one of olmo3-7b-ncp"):
        ModelSpec.preset("olmo")


def test_vanilla_needs_no_encoder() -> None:
    spec = dataclasses.replace(
        ModelSpec.preset("tiny"),
        encoder_layers=0,
        concept=ConceptSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    )
    assert spec.total_layers == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "optimizer.lr = 0.0: must be positive"),
        ({"betas": (0.9, 1.0)}, "optimizer.betas"),
        ({"matrices": "sgd"}, "optimizer.matrices = 'sgd': use muon or adamw"),
        ({"codebooks": "ema"}, "optimizer.codebooks"),
        ({"muon_momentum": 1.0}, "optimizer.muon_momentum"),
        ({"grad_clip": 0.0}, "optimizer.grad_clip"),
    ],
)
def test_bad_optimizer_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerSpec(**{"lr": 1e-3, **changes})
