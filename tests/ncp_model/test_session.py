"""Incremental logits equal the full forward pass: any segmentation, rollback, unequal lengths, every variant."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import Tensor

from curriculum.model_spec import CrcSpec, IrcSpec
from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.session import GenerationSession

TINY = ModelSpec.preset("tiny")
DEEP = dataclasses.replace(TINY, encoder_layers=3, concept_layers=2, decoder_layers=3)
VARIANTS = {
    "default": DEEP,
    "release": dataclasses.replace(
        DEEP,
        window_includes_self=False,
        concept=dataclasses.replace(TINY.concept, mix="raw_logits", rope_stride=4),
        irc=IrcSpec(decoder_softmax=True, cond="delta"),
    ),
    "no_routes": dataclasses.replace(
        DEEP, fusion="add", irc=IrcSpec(enabled=False), crc=CrcSpec(enabled=False)
    ),
    "hidden_readout": dataclasses.replace(
        DEEP, qk_norm="head", concept=dataclasses.replace(TINY.concept, chunk_size=3, readout="hidden")
    ),
    "vanilla": dataclasses.replace(
        TINY,
        concept=dataclasses.replace(TINY.concept, enabled=False),
        irc=IrcSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    ),
}


def model_of(variant: str) -> NCPModel:
    model = build_model(VARIANTS[variant], dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w2", ".diag", ".bias", ".static")):
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, TINY.vocab_size, (batch, length), generator=torch.Generator().manual_seed(7))


def full_logits(model: NCPModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits = model(ids).logits
    assert logits is not None
    return logits


def segments(length: int, rng: random.Random) -> list[int]:
    cuts = []
    while sum(cuts) < length:
        cuts.append(min(rng.randint(1, 7), length - sum(cuts)))
    return cuts


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cut", ["one_by_one", "at_once", 1, 2])
def test_any_segmentation_equals_the_full_pass(variant: str, cut: str | int) -> None:
    model, ids = model_of(variant), tokens(2, 22)
    expected = full_logits(model, ids)
    lengths = {"one_by_one": [1] * 22, "at_once": [22]}.get(str(cut)) or segments(22, random.Random(cut))
    session = GenerationSession(model, 2, 22)
    logits = torch.cat([session.append(part) for part in ids.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-11)
    if model.spec.concept.enabled:
        assert session.concept_steps == 2 * (22 // model.spec.concept.chunk_size)


@pytest.mark.parametrize("variant", ["default", "no_routes", "vanilla"])
@pytest.mark.parametrize("seed", range(3))
def test_rollback_to_any_length_is_as_if_never_appended(variant: str, seed: int) -> None:
    model, rng = model_of(variant), random.Random(seed)
    ids = tokens(2, 30)
    expected = full_logits(model, ids)
    session = GenerationSession(model, 2, 40)
    done = 0
    while done < 30:
        step = min(rng.randint(1, 6), 30 - done)
        logits = session.append(ids[:, done : done + step])
        torch.testing.assert_close(logits, expected[:, done : done + step], rtol=0, atol=1e-11)
        wrong = torch.randint(0, 512, (2, rng.randint(1, 9)))
        done = min(done + step, 30)
        if done + wrong.shape[1] <= 40:
            session.append(wrong)
            back = rng.randint(max(done - 5, 0), done)
            session.rollback([back, back])
            done = back if rng.random() < 0.4 and back > 0 else done
            if done > back:
                session.append(ids[:, back:done])
    assert session.lengths.tolist() == [30, 30]


def test_sequences_of_unequal_lengths_grow_and_shrink_apart() -> None:
    model = model_of("default")
    ids = tokens(3, 25)
    expected = full_logits(model, ids)
    session = GenerationSession(model, 3, 25)
    rng = random.Random(0)
    held = [0, 0, 0]
    for _ in range(40):
        counts = [min(rng.randint(0, 5), 25 - have) for have in held]
        n = max(max(counts), 1)
        block = torch.zeros(3, n, dtype=torch.long)
        for row, count in enumerate(counts):
            block[row, :count] = ids[row, held[row] : held[row] + count]
        logits = session.append(block, torch.tensor(counts))
        for row, count in enumerate(counts):
            part = slice(held[row], held[row] + count)
            torch.testing.assert_close(logits[row, :count], expected[row, part], rtol=0, atol=1e-11)
        held = [have + count for have, count in zip(held, counts, strict=True)]
        held = [rng.randint(max(have - 6, 0), have) if rng.random() < 0.3 else have for have in held]
        session.rollback(held)
        assert session.lengths.tolist() == held


def test_last_only_returns_the_logits_after_each_sequences_last_token() -> None:
    model, ids = model_of("default"), tokens(2, 9)
    logits = GenerationSession(model, 2, 9).append(ids, torch.tensor([4, 9]), last_only=True)
    expected = full_logits(model, ids)
    torch.testing.assert_close(logits, torch.stack((expected[0, 3], expected[1, 8])), rtol=0, atol=1e-11)


def test_selected_sequences_share_a_prefix_and_part_ways() -> None:
    model, ids = model_of("default"), tokens(1, 12)
    prefix = GenerationSession(model, 1, 20)
    prefix.append(ids[:, :7])
    both = prefix.select([0, 0])
    tails = tokens(2, 5)
    logits = both.append(tails)
    for row in range(2):
        expected = full_logits(model, torch.cat((ids[:, :7], tails[row : row + 1]), dim=1))
        torch.testing.assert_close(logits[row], expected[0, 7:], rtol=0, atol=1e-11)
    torch.testing.assert_close(prefix.append(ids[:, 7:]), full_logits(model, ids)[:, 7:], rtol=0, atol=1e-11)


def test_misuse_is_named() -> None:
    session = GenerationSession(model_of("default"), 1, 4)
    with pytest.raises(ValueError, match="reach 5 tokens: max_length is 4"):
        session.append(tokens(1, 5))
    with pytest.raises(ValueError, match="2 sequences"):
        session.append(tokens(2, 2))
    session.append(tokens(1, 2))
    with pytest.raises(ValueError, match=r"lengths = \[3\]"):
        session.rollback([3])
