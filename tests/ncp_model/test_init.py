"""Initial weights by name, and codebooks that start from data."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from curriculum.model_spec import InitSpec
from ncp_model import ModelSpec, build_model
from ncp_model.init import initialize_codebooks, parameter_name

TINY = ModelSpec.preset("tiny")


def test_a_seed_names_the_weights_and_a_parameter_its_own_stream() -> None:
    first, again, other = (dict(build_model(TINY, seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert not torch.equal(first["lm_head.weight"], first["embed_tokens.weight"])


@pytest.mark.parametrize(
    ("init", "base", "output"),
    [
        (InitSpec(), math.sqrt(2 / (5 * 64)), math.sqrt(2 / (5 * 64)) / math.sqrt(2 * 5)),
        (InitSpec(method="normal"), 0.02, 0.02),
        (InitSpec(std=0.1), 0.1, 0.1 / math.sqrt(10)),
    ],
)
def test_matrices_are_truncated_normals_of_the_stated_width(
    init: InitSpec, base: float, output: float
) -> None:
    model = build_model(dataclasses.replace(TINY, init=init))
    for name, parameter in model.named_parameters():
        if ".block." in name and parameter.ndim == 2:
            std = output if "o_proj" in name or "down_proj" in name else base
            assert parameter.std().item() == pytest.approx(std, rel=0.06), name
            assert parameter.abs().max() <= 3 * std
    assert model.predictor.head_weight.std().item() == pytest.approx(base, rel=0.06)
    assert model.embed_tokens.weight.std().item() == pytest.approx(base, rel=0.06)


def test_vectors_and_routes_start_as_specified() -> None:
    parameters = dict(build_model(TINY).named_parameters())
    constants = {
        "vq_norm.bias": 0.0,
        "vq_norm.weight": 1.0,
        "encoder.0.block.attention.k_norm.weight": 1.0,
        "predictor.head_bias": 0.0,
        "fusion.alpha": 0.1,
        "decoder.0.final_concept.diag": 0.05,
        "decoder.0.read_encoder.diag": 0.02,
        "decoder.0.final_concept.gate_logits": math.log(0.5),
        "decoder.1.irc.weights.w2": 0.0,
    }
    for name, value in constants.items():
        torch.testing.assert_close(parameters[name], torch.full_like(parameters[name], value), msg=name)
    assert parameters["encoder.1.irc.static"].tolist() == [0, 0, 1]
    assert parameters["decoder.1.irc.weights.w1"].std().item() == pytest.approx(1 / 8, rel=0.15)


def test_names_survive_wrappers() -> None:
    assert parameter_name("encoder.0._orig_mod.block._checkpoint_wrapped_module.mlp") == "encoder.0.block.mlp"


def test_codebooks_start_as_segments_of_real_chunks() -> None:
    model = build_model(TINY)
    ids = torch.randint(0, 512, (4, 32), generator=torch.Generator().manual_seed(0))
    z = model(ids).concept.normed.flatten(0, 1).unflatten(-1, (4, 16))
    initialize_codebooks(model, ids)
    codebook = model.predictor.codebook
    for segment in range(4):
        distances = (codebook[segment].unsqueeze(1) - z[:, segment]).abs().sum(-1)
        assert (distances.min(dim=1).values < 1e-4).all()
        assert len({*distances.argmin(dim=1).tolist()}) == 16  # no chunk twice
    first = codebook.detach().clone()
    initialize_codebooks(model, ids)
    assert torch.equal(first, codebook)
    initialize_codebooks(model, ids, seed=1)
    assert not torch.equal(first, codebook)


def test_fewer_chunks_than_codewords_repeat_with_a_little_noise() -> None:
    model = build_model(TINY)
    initialize_codebooks(model, torch.arange(20).view(1, 20))
    for segment in model.predictor.codebook:
        distances = torch.pdist(segment)
        assert distances.min() > 0
        assert (distances < 0.2).any()


def test_codebooks_cannot_start_from_less_than_a_chunk() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3\) holds no complete chunk"):
        initialize_codebooks(build_model(TINY), torch.zeros(1, 3, dtype=torch.long))
