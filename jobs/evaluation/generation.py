"""Completions by the model itself: the cached generator, in batches, ending at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from jobs.evaluation.forward import model_device
from jobs.evaluation.generative import Complete, Fit
from jobs.evaluation.programs import truncate_at
from jobs.evaluation.window import Fitted, Prompt, example_starts, fit_prompts
from ncp_model import NCPModel
from ncp_model.generate import Sampler, Sampling
from ncp_model.session import GenerationSession
from pipeline.data.tokenizer import Tokenizer

_CHECK_EVERY = 8
"""New tokens between two looks for a stop string; decoding at every token would cost more than it saves."""


def completion_tokens(sequence_length: int, max_new_tokens: int) -> int:
    """Most tokens of a completion: `max_new_tokens`, or half of the window where that is less."""
    return max(1, min(max_new_tokens, sequence_length // 2))


def prompt_fitter(tokenizer: Tokenizer, *, sequence_length: int) -> Fit:
    """A `Fit` for `answer_records`: what of each prompt leaves room for its completion (`window.fit_prompts`)."""

    def fit(contexts: Sequence[str], shots: int, max_new_tokens: int) -> list[Fitted | None]:
        room = sequence_length - completion_tokens(sequence_length, max_new_tokens)
        prompts = [
            Prompt(context=context, starts=example_starts(context, shots), room=room) for context in contexts
        ]
        return fit_prompts(prompts, tokenizer.encode_batch, tokenizer.eos_id)

    return fit


def model_completer(
    model: NCPModel,
    tokenizer: Tokenizer,
    *,
    sequence_length: int,
    samples: int = 1,
    temperature: float = 0.0,
    top_p: float | None = None,
    seed: int = 0,
) -> Complete:
    """A `Complete` for `evaluate_generative`: `samples` completions a prompt, greedy at temperature 0.

    Prompt and completion fit in `sequence_length` together, the completion in at most half of it. A prompt that is longer than
    that is truncated from the left, as harnesses do; `prompt_fitter` is for those who must not lose half a question.
    """

    def complete(prompts: Sequence[str], stops: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        new_tokens = completion_tokens(sequence_length, max_new_tokens)
        room = sequence_length - new_tokens
        ids = [
            [int(i) for i in encoded][-room:] or [tokenizer.eos_id]
            for encoded in tokenizer.encode_batch(prompts)
        ]
        rows = [prompt for prompt in ids for _ in range(samples)]
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)

        def ended(tokens: Sequence[int]) -> bool:
            text = tokenizer.decode(tokens)
            return any(stop in text for stop in stops)

        produced = generate_until(
            model, rows, max_new_tokens=new_tokens, sampling=sampling, eos_id=tokenizer.eos_id, ended=ended
        )
        texts = [truncate_at(tokenizer.decode(tokens), stops) for tokens in produced]
        return [texts[start : start + samples] for start in range(0, len(texts), samples)]

    return complete


@torch.inference_mode()
def generate_until(
    model: NCPModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int,
    ended: Callable[[Sequence[int]], bool],
) -> list[list[int]]:
    """As `ncp_model.generate.generate`, and a sequence also ends once `ended(its new tokens)` is true.

    `ended` is asked every few tokens only, so a sequence may run a little past its end: the caller cuts.
    """
    device = model_device(model)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    padded = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    session = GenerationSession(model, len(prompts), int(lengths.max()) + max_new_tokens)
    sampler = Sampler(sampling, prompts)
    logits = session.append(padded.to(device), lengths.to(device), last_only=True)
    produced: list[list[int]] = [[] for _ in prompts]
    alive = [True] * len(prompts)
    for step in range(1, max_new_tokens + 1):
        tokens = sampler.draw(logits)
        for row, token in enumerate(tokens):
            alive[row] = alive[row] and token != eos_id
            if alive[row]:
                produced[row].append(token)
        if step % _CHECK_EVERY == 0:
            alive = [going and not ended(done) for going, done in zip(alive, produced, strict=True)]
        if not any(alive) or step == max_new_tokens:
            break
        following = torch.tensor(tokens, device=device).unsqueeze(1)
        logits = session.append(following, torch.tensor(alive, device=device).long(), last_only=True)
    return produced
