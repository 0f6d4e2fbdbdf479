"""Greedy and sampled text, batched and streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh

from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.generate import NotANumber, Sampling, generate, probabilities, stream
from ncp_model.parallel import shard_model
from ncp_model.session import GenerationSession


@pytest.fixture(scope="module")
def model() -> NCPModel:
    return build_model(ModelSpec.preset("tiny"), seed=4)


LONGEST = ModelSpec.preset("tiny").max_sequence_length
PROMPTS = [[1, 2, 3], [7], [5, 6, 7, 8, 9, 10, 11], [400, 2, 30, 4]]


def test_greedy_text_is_the_argmax_of_the_full_pass(model: NCPModel) -> None:
    produced = generate(model, PROMPTS, max_new_tokens=11)
    for prompt, continuation in zip(PROMPTS, produced, strict=True):
        ids = list(prompt)
        for token in continuation:
            logits = model(torch.tensor([ids])).logits
            assert int(logits[0, -1].argmax()) == token
            ids.append(token)
        assert len(continuation) == 11


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_is_its_prompts_alone_and_a_stream(model: NCPModel, temperature: float) -> None:
    settings = {"max_new_tokens": 9, "temperature": temperature, "top_k": 40, "top_p": 0.95}
    together = generate(model, PROMPTS, seed=3, **settings)
    for row, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], seed=3, **settings) == [together[row]]
        assert list(stream(model, prompt, seed=3, **settings)) == together[row]
    if temperature:
        assert generate(model, PROMPTS, seed=50, **settings) != together


def test_generation_ends_before_the_end_token(model: NCPModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12)
    eos = free[0][5]
    stopped = generate(model, PROMPTS, max_new_tokens=12, eos_id=eos)
    for whole, cut in zip(free, stopped, strict=True):
        assert cut == (whole[: whole.index(eos)] if eos in whole else whole)
    assert list(stream(model, PROMPTS[0], max_new_tokens=12, eos_id=eos)) == stopped[0]


def test_top_k_and_nucleus_cut_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    cut = probabilities(logits, Sampling(temperature=1.0, top_k=2))
    torch.testing.assert_close(cut, torch.tensor([0.625, 0.375, 0.0, 0.0]))
    cut = probabilities(logits, Sampling(temperature=1.0, top_p=0.7))
    torch.testing.assert_close(cut, torch.tensor([0.625, 0.375, 0.0, 0.0]))
    sharp = probabilities(logits, Sampling(temperature=0.5))
    torch.testing.assert_close(sharp, torch.tensor([0.25, 0.09, 0.0225, 0.0025]) / 0.365)


@pytest.mark.parametrize(
    ("prompts", "settings", "match"),
    [
        ([[]], {}, "prompt 0 is empty"),
        ([[600]], {}, r"0 \.\. 511"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens = 0"),
        ([[1]], {"temperature": -1.0}, "temperature = -1"),
        ([[1]], {"temperature": float("nan")}, "temperature = nan"),
        ([[1]], {"temperature": float("inf")}, "temperature = inf"),
        ([[1], [1] * 100], {"max_new_tokens": LONGEST - 99}, f"use at most {LONGEST - 100}"),
        ([[1] * LONGEST], {"max_new_tokens": 1}, "shorten the prompt"),
        ([[1]], {"top_p": 0.0}, "top_p = 0"),
        ([[1]], {"top_k": 0}, "top_k = 0"),
    ],
)
def test_bad_settings_are_named(
    model: NCPModel, prompts: list[list[int]], settings: dict[str, float], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        generate(model, prompts, **{"max_new_tokens": 2, **settings})


def test_no_prompts_give_no_text(model: NCPModel) -> None:
    assert generate(model, [], max_new_tokens=3) == []


def test_the_window_can_be_filled_and_not_passed() -> None:
    short = build_model(replace(ModelSpec.preset("tiny"), max_sequence_length=32), seed=4)
    assert len(generate(short, [[1, 2]], max_new_tokens=30)[0]) == 30
    with pytest.raises(ValueError, match="max_sequence_length = 32"):
        generate(short, [[1, 2]], max_new_tokens=31)
    with pytest.raises(ValueError, match="max_sequence_length = 32"):
        GenerationSession(short, 1, 33)


def test_samples_of_equal_prompts_differ_and_no_seed_repeats_those_of_another(model: NCPModel) -> None:
    drawn = [
        tuple(tokens)
        for seed in range(4)
        for tokens in generate(model, [[1, 2, 3]] * 8, max_new_tokens=8, temperature=1.0, seed=seed)
    ]
    assert len(set(drawn)) == 32


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=12),
    st.integers(1, 12),
    st.one_of(st.none(), st.floats(0.05, 1.0)),
)
def test_exactly_k_tokens_stay_and_ties_go_to_the_smaller_ids(
    levels: list[int], k: int, p: float | None
) -> None:
    logits = torch.tensor([float(level) for level in levels])
    share = probabilities(logits, Sampling(temperature=1.0, top_k=k, top_p=p))
    kept = sorted(share.nonzero().flatten().tolist())
    best = sorted(range(len(levels)), key=lambda index: (-levels[index], index))[: len(kept)]
    assert kept == sorted(best)
    assert len(kept) == min(k, len(levels)) if p is None else 1 <= len(kept) <= min(k, len(levels))
    assert float(share.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_named_and_nothing_is_drawn(temperature: float, bad: float) -> None:
    sick = build_model(ModelSpec.preset("tiny"), seed=4)
    with torch.no_grad():
        sick.lm_head.weight[7] = bad
    with pytest.raises(NotANumber, match="sequence 0: the logits of new token 1"):
        generate(sick, PROMPTS, max_new_tokens=3, temperature=temperature)


def test_a_sharded_model_says_that_it_must_be_whole(run_ranks: Callable[..., None]) -> None:
    run_ranks(_generate_sharded, 1)


def _generate_sharded(rank: int, world_size: int) -> None:
    sharded = shard_model(
        build_model(ModelSpec.preset("tiny"), seed=4), init_device_mesh("cpu", (world_size,))
    )
    with pytest.raises(ValueError, match="sharded over ranks"):
        generate(sharded, [[1]], max_new_tokens=2)
