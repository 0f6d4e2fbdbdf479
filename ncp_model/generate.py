"""Text generation: greedy or sampled, one prompt as a stream or many of unequal lengths at once (docs/model.md 11)."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curriculum.errors import InputError
from ncp_model.model import NCPModel
from ncp_model.session import GenerationSession


class NotANumber(InputError):
    """The model's logits are no numbers: nothing can be drawn from them. Names the sequence and its token."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy; `top_k` and `top_p` then have no effect."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature = {self.temperature}: must be a number from 0 up; 0 is greedy")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k = {self.top_k}: must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: must lie in (0, 1]")


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Next-token distribution of logits [.., V] at a positive temperature, cut to the top k and to the nucleus p.

    Exactly k tokens stay, and the fewest that reach p: of equal ones those with the smaller ids.
    """
    scaled = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        order = scaled.sort(dim=-1, descending=True, stable=True).indices
        scaled = scaled.scatter(-1, order[..., sampling.top_k :], float("-inf"))
    share = scaled.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = share.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p  # the token that crosses p stays inside
        share = torch.zeros_like(share).scatter(-1, order, ordered.masked_fill(outside, 0.0))
        share = share / share.sum(-1, keepdim=True)
    return share


class Sampler:
    """Draws tokens; each sequence has a random stream of its own, so it does not depend on its batch or place in it.

    The stream is that of the seed, the prompt, and how many equal prompts come before it in the batch. No two are shifted
    copies of each other, as those of neighbouring seeds would be if a row were added to a seed.
    """

    def __init__(self, sampling: Sampling, prompts: Sequence[Sequence[int]]) -> None:
        self.sampling = sampling
        self.drawn = 0
        seen: Counter[str] = Counter()
        self.generators = []
        for prompt in prompts:
            key = ",".join(str(int(token)) for token in prompt)
            self.generators.append(_generator(f"{sampling.seed}/{seen[key]}/{key}"))
            seen[key] += 1

    def draw(self, logits: Tensor) -> list[int]:
        """One token per sequence from logits [B, V]. Raises NotANumber."""
        self.drawn += 1
        wrong = (~logits.isfinite()).any(-1)
        if bool(wrong.any()):
            raise NotANumber(
                f"sequence {int(wrong.nonzero()[0])}: the logits of new token {self.drawn} are not finite numbers; the "
                "weights are damaged or the training diverged: use an earlier checkpoint"
            )
        if self.sampling.temperature == 0:
            return logits.argmax(-1).tolist()
        share = probabilities(logits, self.sampling).cpu()
        return [
            int(torch.multinomial(p, 1, generator=g)) for p, g in zip(share, self.generators, strict=True)
        ]


def _generator(stream: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(seed)


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

    Prompts may differ in length. A sampled sequence is what it would be alone, and those of equal prompts differ. Raises
    ValueError for an empty prompt, ids outside the vocabulary, settings out of range, more tokens than the model's
    max_sequence_length or a sharded model, and NotANumber.
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
    room = model.spec.max_sequence_length - max(lengths)
    if max_new_tokens > room:
        raise ValueError(
            f"max_new_tokens = {max_new_tokens}: with a prompt of {max(lengths)} tokens the sequence would pass "
            f"max_sequence_length = {model.spec.max_sequence_length}, beyond which the model was never trained; "
            + (f"use at most {room}" if room > 0 else "shorten the prompt")
        )
    padded = torch.zeros(
        len(prompts), max(lengths), dtype=torch.long
    )  # on the right, as chunks are counted from 0
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    session = GenerationSession(model, len(prompts), max(lengths) + max_new_tokens)
    logits = session.append(padded, torch.tensor(lengths), last_only=True)
    return session, Sampler(sampling, prompts), logits


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
