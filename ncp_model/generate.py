"""Text generation: greedy or sampled, one prompt as a stream or many of unequal lengths at once (NCP spec 11)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ncp_model.model import NCPModel
from ncp_model.session import GenerationSession


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy; `top_k` and `top_p` then have no effect."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature = {self.temperature}: must not be negative; 0 is greedy")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k = {self.top_k}: must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: must lie in (0, 1]")


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Next-token distribution of logits [.., V] at a positive temperature, cut to the top k and to the nucleus p."""
    scaled = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        threshold = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, float("-inf"))
    share = scaled.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = share.sort(dim=-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p  # the token that crosses p stays inside
        share = torch.zeros_like(share).scatter(-1, order, ordered.masked_fill(outside, 0.0))
        share = share / share.sum(-1, keepdim=True)
    return share


class Sampler:
    """Draws tokens; each sequence has a generator of its own, so a sequence does not depend on its batch."""

    def __init__(self, sampling: Sampling, batch_size: int) -> None:
        self.sampling = sampling
        self.generators = [torch.Generator().manual_seed(sampling.seed + row) for row in range(batch_size)]

    def draw(self, logits: Tensor) -> list[int]:
        """One token per sequence from logits [B, V]."""
        if self.sampling.temperature == 0:
            return logits.argmax(-1).tolist()
        share = probabilities(logits, self.sampling).cpu()
        return [
            int(torch.multinomial(p, 1, generator=g)) for p, g in zip(share, self.generators, strict=True)
        ]


def generate(
    model: NCPModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos_id: int | None = None,
) -> list[list[int]]:
    """Continue each prompt by up to `max_new_tokens`, stopping before `eos_id`; returns the new tokens alone.

    Prompts may differ in length. Sequence i of a sampled batch is what it would be alone with seed + i. Raises
    ValueError for an empty prompt, ids outside the vocabulary, or settings out of range.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    return [[*tokens] for tokens in _run(model, prompts, max_new_tokens, sampling, eos_id)]


def stream(
    model: NCPModel,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos_id: int | None = None,
) -> Iterator[int]:
    """As `generate` for one prompt, each token as soon as it is known."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    session, sampler, logits = _prefill(model, [prompt], max_new_tokens, sampling)
    for _ in range(max_new_tokens):
        token = sampler.draw(logits)[0]
        if token == eos_id:
            return
        yield token
        logits = session.append(torch.tensor([[token]]), last_only=True)


def _prefill(
    model: NCPModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling
) -> tuple[GenerationSession, Sampler, Tensor]:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens = {max_new_tokens}: must be at least 1")
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {row} is empty: give at least one token (the end-of-text token, say)")
    lengths = [len(prompt) for prompt in prompts]
    padded = torch.zeros(
        len(prompts), max(lengths), dtype=torch.long
    )  # on the right, as chunks are counted from 0
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    session = GenerationSession(model, len(prompts), max(lengths) + max_new_tokens)
    logits = session.append(padded, torch.tensor(lengths), last_only=True)
    return session, Sampler(sampling, len(prompts)), logits


def _run(
    model: NCPModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int | None,
) -> list[list[int]]:
    if not prompts:
        return []
    session, sampler, logits = _prefill(model, prompts, max_new_tokens, sampling)
    produced: list[list[int]] = [[] for _ in prompts]
    alive = [True] * len(prompts)
    for step in range(max_new_tokens):
        tokens = sampler.draw(logits)
        for row, token in enumerate(tokens):
            alive[row] = alive[row] and token != eos_id
            if alive[row]:
                produced[row].append(token)
        if not any(alive) or step + 1 == max_new_tokens:
            break
        logits = session.append(torch.tensor(tokens).unsqueeze(1), torch.tensor(alive).long(), last_only=True)
    return produced
