"""The bound of attention's logits: never below the largest one, and told without changing the forward pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ncp_model import ModelSpec, build_model
from ncp_model.attention_logits import AttentionLogits
from ncp_model.layers import Attention
from ncp_model.parallel import tower_layers

IDS = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))


def _largest(attention: Attention, x: torch.Tensor) -> float:
    """The largest |logit| of any pair of positions, before rotation, which may only turn the vectors."""
    queries, keys = (
        attention._heads(projection(x), norm)
        for projection, norm in ((attention.q_proj, attention.q_norm), (attention.k_proj, attention.k_norm))
    )
    return float((queries @ keys.mT).detach().abs().max()) / math.sqrt(attention.head_dim)


@pytest.mark.parametrize("qk_norm", ["layer", "head"])
def test_the_bound_holds_for_every_layer(qk_norm: str) -> None:
    spec = replace(ModelSpec.preset("tiny"), qk_norm=qk_norm)
    model = build_model(spec)
    seen: dict[Attention, torch.Tensor] = {}
    for layer in tower_layers(model):
        layer.block.attention.register_forward_pre_hook(lambda module, args: seen.update({module: args[0]}))
    logits = AttentionLogits(model)
    plain = model(IDS).logits
    with torch.no_grad(), logits:
        assert torch.equal(model(IDS).logits, plain)
    bounds = logits.bounds()
    assert len(bounds) == len(logits.names) == len(tower_layers(model))
    assert (logits.names[0], logits.names[-1]) == ("encoder.1", f"decoder.{spec.decoder_layers}")
    for bound, layer in zip(bounds.tolist(), tower_layers(model), strict=True):
        exact = _largest(layer.block.attention, seen[layer.block.attention])
        assert exact <= bound * (1 + 1e-5) and bound < 10 * exact


def test_a_block_starts_anew_and_leaves_no_hook() -> None:
    model = build_model(ModelSpec.preset("tiny"))
    logits = AttentionLogits(model)
    with logits:
        model(IDS)
    first = logits.bounds()
    model(IDS)
    assert not any(layer.block.attention.q_norm._forward_hooks for layer in tower_layers(model))
    with torch.no_grad():
        for layer in tower_layers(model):
            layer.block.attention.q_norm.weight.mul_(0.5)
    with logits:
        model(IDS[:, :8])
    assert (logits.bounds() < first).all()
