"""NCP R^2 against trivial predictors, and codebook usage."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from ncp_model import ModelSpec, build_model
from ncp_model.metrics import CodebookUsage, NextConceptScore
from ncp_model.output import ConceptOutput, ModelOutput


def output(
    predicted: Tensor, target: Tensor, codes: Tensor | None = None, valid: Tensor | None = None
) -> ModelOutput:
    batch, chunks = target.shape[:2]
    valid = torch.ones(batch, chunks, dtype=torch.bool) if valid is None else valid
    concept = ConceptOutput(
        predicted=predicted,
        predicted_for_loss=predicted,
        target=target,
        normed=target,
        logits=torch.empty(0),
        codes=torch.zeros(batch, chunks, 1, dtype=torch.long) if codes is None else codes,
        vq_error=torch.empty(0),
        raw=(),
        valid=valid,
        pair_valid=valid[:, :-1] & valid[:, 1:],
    )
    return ModelOutput(concept=concept)


def shifted(target: Tensor) -> Tensor:
    """A perfect prediction: row j is concept j + 1."""
    return torch.cat((target[:, 1:], target[:, :1]), dim=1)


def score(predicted: Tensor, target: Tensor) -> dict[str, float]:
    state = NextConceptScore()
    state.update(output(predicted, target))
    return state.compute()


def test_perfect_and_trivial_predictors_score_one_and_zero() -> None:
    target = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0)) + 2
    perfect = score(shifted(target), target)
    assert perfect["ncp_mse"] == 0
    assert [perfect[f"ncp_r2_{name}"] for name in ("zero", "mean", "copy")] == [1, 1, 1]
    assert score(torch.zeros_like(target), target)["ncp_r2_zero"] == pytest.approx(0)
    assert score(target, target)["ncp_r2_copy"] == pytest.approx(0)
    mean = target[:, 1:].mean((0, 1)).expand_as(target)
    assert score(mean, target)["ncp_r2_mean"] == pytest.approx(0, abs=1e-6)


def test_batches_accumulate_and_masked_pairs_do_not_count() -> None:
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(4, 6, 5, generator=generator)
    predicted = torch.randn(4, 6, 5, generator=generator)
    together = score(predicted, target)
    apart = NextConceptScore()
    for part in (slice(0, 1), slice(1, 4)):
        apart.update(output(predicted[part], target[part]))
    assert apart.compute() == pytest.approx(together)

    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[:, 4:] = False
    masked = NextConceptScore()
    masked.update(output(predicted, target, valid=valid))
    assert masked.compute() == pytest.approx(score(predicted[:, :4], target[:, :4]))
    nothing = NextConceptScore()
    nothing.update(output(predicted, target, valid=torch.zeros_like(valid)))
    assert nothing.compute() == {}


def test_codebook_usage_counts_valid_chunks_per_segment() -> None:
    codes = torch.tensor([[[0, 2], [1, 2], [0, 2], [3, 2]]])
    valid = torch.tensor([[True, True, True, False]])
    target = torch.zeros(1, 4, 2)
    usage = CodebookUsage(2, 4)
    usage.update(output(target, target, codes, valid))
    assert usage.counts.tolist() == [[2, 1, 0, 0], [0, 0, 3, 0]]
    assert usage.used().tolist() == [2, 1]
    assert usage.dead().tolist() == [2, 3]
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert usage.perplexity().tolist() == pytest.approx([math.exp(entropy), 1.0])
    assert usage.compute()["codebook_dead_max"] == 3
    assert CodebookUsage(2, 4).compute()["codebook_perplexity"] == 0


def test_the_models_own_output_is_accepted() -> None:
    spec = ModelSpec.preset("tiny")
    ids = torch.randint(0, 512, (2, 24), generator=torch.Generator().manual_seed(0))
    out = build_model(spec)(ids, ids)
    usage, scores = CodebookUsage(4, 16), NextConceptScore()
    usage.update(out)
    scores.update(out)
    assert usage.counts.sum() == 4 * 12
    assert scores.compute()["ncp_mse"] == pytest.approx(float(out.means()["ncp"]), rel=1e-5)


def test_outputs_without_concepts_are_refused() -> None:
    vanilla = dataclasses.replace(
        ModelSpec.preset("olmo3-7b-vanilla-32"),
        hidden_size=64,
        intermediate_size=64,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        vocab_size=32,
    )
    ids = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ValueError, match="labels"):
        CodebookUsage(1, 1).update(build_model(vanilla)(ids, ids))
