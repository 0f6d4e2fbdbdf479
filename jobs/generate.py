"""`ncp generate`: text from a checkpoint, streamed as it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from curriculum.errors import InputError, RecipeError
from jobs.runs.checkpoint_ref import find_checkpoint
from jobs.training.load_checkpoint import load_folder, load_soundest
from pipeline.storage import Storage


def generate_text(
    storage_url: str,
    checkpoint: str,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> Iterator[str]:
    """Pieces of text that continue `prompt`; a character whose bytes come in several tokens is yielded whole.

    An empty prompt starts from the end-of-text token, as a new document does. Raises RecipeError for a checkpoint that
    does not exist, or sampling settings out of range.
    """
    _check_sampling(max_tokens, temperature, top_k, top_p)
    if Path(checkpoint).is_dir():
        model, tokenizer = load_folder(Path(checkpoint))
    else:
        storage = Storage(storage_url)
        _, model, tokenizer = load_soundest(storage, find_checkpoint(storage, checkpoint))
    from ncp_model.generate import stream  # brings torch, which a wrong name need not wait for

    ids = tokenizer.encode(prompt) or [tokenizer.eos_id]
    try:
        tokens = stream(
            model,
            ids,
            max_new_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            eos_id=tokenizer.eos_id,
        )
        yield from text_pieces(tokens, tokenizer.decode)
    except ValueError as error:
        raise RecipeError(f"generate: {error}") from error


def text_pieces(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """The text of `tokens` in pieces, as soon as each is whole. A piece is decoded with the one before it, whose end may decide
    how it begins (a space), and with nothing else, so that a long text costs no more a token than a short one."""
    before: list[int] = []
    pending: list[int] = []
    for token in tokens:
        pending.append(token)
        whole = decode([*before, *pending])
        if not whole.endswith("\ufffd"):
            yield whole[len(decode(before)) :]
            before, pending = pending, []
    if pending:
        yield decode([*before, *pending])[len(decode(before)) :]


def _check_sampling(max_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise InputError for settings out of range, before a model is loaded for nothing."""
    for option, value, good, range_ in (
        ("--max-tokens", max_tokens, max_tokens >= 1, "1 or more"),
        ("--temperature", temperature, 0 <= temperature < math.inf, "a finite number, 0 (greedy) or more"),
        ("--top-k", top_k, top_k is None or top_k >= 1, "1 or more"),
        ("--top-p", top_p, top_p is None or 0 < top_p <= 1, "above 0 and at most 1"),
    ):
        if not good:
            raise InputError(f"{option}: {value} is out of range; give {range_}")
