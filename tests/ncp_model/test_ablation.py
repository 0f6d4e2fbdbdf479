"""The ablation ladder and its identities (docs/model.md 8), routes at their start (2.7 - 2.9), and domain adaptation (9)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, NcpSpec, VqSpec
from curriculum.optimizer_spec import OptimizerSpec
from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.flops import adaptation_parameters
from ncp_model.grid import AlignedGrid
from ncp_model.mixing import State
from ncp_model.optim import build_optimizers
from ncp_model.residual import CrossResidual, row_sources, token_sources

NCP = dataclasses.replace(ModelSpec.preset("tiny"), encoder_layers=4, concept_layers=2, decoder_layers=4)
NO_LOSS = {"ncp": NcpSpec(weight=0.0), "vq": VqSpec(weight=0.0)}
RESIDUAL = dataclasses.replace(NCP, **NO_LOSS)
CONCEPT = dataclasses.replace(RESIDUAL, irc=IrcSpec(enabled=False), crc=CrcSpec(enabled=False))
VANILLA = dataclasses.replace(CONCEPT, concept_layers=0, concept=ConceptSpec(enabled=False))


def tokens(length: int = 19) -> Tensor:
    return torch.randint(0, 512, (2, length), generator=torch.Generator().manual_seed(0))


def logits_of(model: NCPModel, ids: Tensor, **settings: bool) -> Tensor:
    with torch.no_grad():
        logits = model(ids, **settings).logits
    assert logits is not None
    return logits


def test_rung_1_is_a_plain_stack_of_blocks() -> None:
    model, ids = build_model(VANILLA, dtype=torch.float64), tokens()
    with torch.no_grad():
        x = model.embed_tokens(ids)
        pattern, _ = AlignedGrid(19, 4).patterns(VANILLA, x)
        for layer in model.decoder:
            x = layer.block(x, pattern)
        expected = model.lm_head(model.final_norm(x))
    assert torch.equal(logits_of(model, ids), expected)


def test_rung_3_with_silent_routes_is_rung_2() -> None:
    """IRC starts as the residual stream, so with the diagonals of the cross-module routes at zero nothing is added."""
    residual, concept = (build_model(spec, dtype=torch.float64) for spec in (RESIDUAL, CONCEPT))
    with torch.no_grad():
        for name, parameter in residual.named_parameters():
            if name.endswith(".diag"):
                parameter.zero_()
    assert torch.equal(logits_of(residual, tokens()), logits_of(concept, tokens()))


def test_rungs_share_the_weights_they_have_in_common() -> None:
    lower = dict(build_model(CONCEPT, seed=3).named_parameters())
    higher = dict(build_model(NCP, seed=3).named_parameters())
    assert lower.keys() < higher.keys()
    assert all(torch.equal(value, higher[name]) for name, value in lower.items())


def test_the_ncp_rung_differs_by_its_losses_alone() -> None:
    ids = tokens()
    with_losses, without = (build_model(spec)(ids, ids) for spec in (NCP, RESIDUAL))
    assert torch.equal(with_losses.ntp, without.ntp)
    assert torch.equal(with_losses.ncp, without.ncp)
    assert with_losses.loss > without.loss


def test_a_hidden_readout_injects_the_modules_state_and_keeps_the_parameters() -> None:
    hidden = dataclasses.replace(CONCEPT, concept=dataclasses.replace(CONCEPT.concept, readout="hidden"))
    model = build_model(hidden)
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in build_model(CONCEPT).parameters()
    )
    before = logits_of(model, tokens())
    with torch.no_grad():
        model.predictor.codebook.zero_()
    assert torch.equal(before, logits_of(model, tokens()))


def test_without_a_concept_every_token_reads_what_the_first_ones_read() -> None:
    model, ids = build_model(NCP), tokens()
    k = NCP.concept.chunk_size
    normal, zeroed = logits_of(model, ids), logits_of(model, ids, zero_concept=True)
    assert torch.equal(normal[:, : k - 1], zeroed[:, : k - 1])
    assert (normal[:, k - 1 :] != zeroed[:, k - 1 :]).any()


def test_decoder_softmax_starts_with_the_published_weight_of_the_newest_state() -> None:
    """docs/model.md 0.1: 0.731, 0.254, 0.145 at 2, 9, 17 candidates; and +12 makes it a residual stream again."""
    for candidates, expected in ((2, 0.731), (9, 0.254), (17, 0.145)):
        static = torch.zeros(candidates)
        static[-1] = 1.0
        assert round(float(static.softmax(0)[-1]), 3) == expected
    spec = dataclasses.replace(NCP, irc=IrcSpec(decoder_softmax=True, decoder_static_init=12.0))
    plain = dataclasses.replace(NCP)
    difference = (
        (logits_of(build_model(spec), tokens()) - logits_of(build_model(plain), tokens())).abs().max()
    )
    assert build_model(spec).decoder[3].irc.static.tolist() == [0, 0, 0, 0, 12]
    assert build_model(spec).encoder[3].irc.static.tolist() == [0, 0, 0, 0, 1]
    assert difference < 1e-2


@pytest.mark.parametrize("gate", [None, 0.3])
def test_routes_equal_the_published_formula(gate: float | None) -> None:
    """y + g * diag * sum_i softmax_i LN(S_i), with every LayerNorm really taken."""
    generator = torch.Generator().manual_seed(0)
    norm = torch.nn.LayerNorm(16, eps=1e-6, dtype=torch.float64)
    route = CrossResidual(16, 3).double()
    with torch.no_grad():
        for parameter in (*norm.parameters(), *route.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    states = [torch.randn(2, 4, 16, generator=generator, dtype=torch.float64) * 3 + 1 for _ in range(3)]
    y = torch.randn(2, 18, 16, generator=generator, dtype=torch.float64)
    scale = torch.tensor(1.0 if gate is None else gate, dtype=torch.float64)
    passed = None if gate is None else scale

    def expected(target: Tensor, sources: list[Tensor]) -> Tensor:
        weights = (torch.nn.functional.gelu(target @ route.weights.w1.T) @ route.weights.w2.T).softmax(-1)
        return target + scale * route.diag * sum(
            weights[..., i : i + 1] * norm(s) for i, s in enumerate(sources)
        )

    same_resolution = y[:, :4]
    actual = route(same_resolution, token_sources([State(s) for s in states], norm), passed)
    torch.testing.assert_close(actual, expected(same_resolution, states))

    grid = AlignedGrid(18, 4)  # concept rows are read by tokens; a zero row goes in front, before the norm
    rows = torch.nn.functional.pad(torch.stack(states, dim=2), (0, 0, 0, 0, 1, 0))
    per_token = [norm(grid.spread(rows[:, :, i])) for i in range(3)]
    with torch.no_grad():
        norm_free = [row.clone() for row in per_token]
    weights = (torch.nn.functional.gelu(y @ route.weights.w1.T) @ route.weights.w2.T).softmax(-1)
    repeated = y + scale * route.diag * sum(weights[..., i : i + 1] * s for i, s in enumerate(norm_free))
    torch.testing.assert_close(route(y, row_sources(rows, norm, grid), passed), repeated)


def test_domain_adaptation_moves_heads_and_codebooks_and_nothing_else() -> None:
    model, ids = build_model(NCP), tokens()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("predictor."))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == adaptation_parameters(NCP)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = build_optimizers(model, OptimizerSpec(lr=1e-2))
    for _ in range(3):
        model(ids, ids).loss.backward()
        optimizers.step(1e-2)
        optimizers.zero_grad()
    moved = {name for name, p in model.named_parameters() if not torch.equal(before[name], p)}
    assert moved == {"predictor.head_weight", "predictor.head_bias", "predictor.codebook"}
