"""Greedy and sampled text, batched and streamed."""

from __future__ import annotations

import pytest
import torch

from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.generate import Sampling, generate, probabilities, stream


@pytest.fixture(scope="module")
def model() -> NCPModel:
    return build_model(ModelSpec.preset("tiny"), seed=4)


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
        assert generate(model, [prompt], seed=3 + row, **settings) == [together[row]]
        assert list(stream(model, prompt, seed=3 + row, **settings)) == together[row]
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
