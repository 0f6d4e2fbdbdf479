"""The scorer: log-probabilities of continuations, one table from which every metric derives.

Conventions (those of `ai2-olmo-eval` 0.9.0, with its faults left out):

- Context and continuation are encoded separately; no BOS. An empty context becomes one EOS, the token that precedes
  every document in training.
- Question and answer are never cut. A prompt that is too long loses whole worked examples, the same for every choice of
  a question (`window`); a question that does not fit without them is *skipped*.
- The model is causal, so rows are padded on the right, choices of one question share the run of their context, and
  logits are formed only where they are read.

What is computed for a request does not depend on the other requests. What floating point makes of it may: a matrix
product may round differently in another batch shape, so log-probabilities agree across batchings to about 1e-5
relative in float32, not bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from jobs.evaluation.forward import logits_at, model_device
from jobs.evaluation.requests import Request
from jobs.evaluation.shared_prefix import TokenScore, score_reads, score_stems
from jobs.evaluation.token_rows import Pair, Row, Stem, merge_prefixes, split_stems, token_rows
from jobs.evaluation.window import Prompt, fit_prompts
from ncp_model import NCPModel

SAVING = 0.3
"""Contexts are shared when that saves this share of the tokens; below, the bookkeeping costs more."""


class TextEncoder(Protocol):
    """What the scorer needs of a tokenizer (`pipeline.data.tokenizer.Tokenizer`)."""

    @property
    def eos_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Iterable[int]]:
        """Ids of each text, without special tokens."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What the model thinks of one continuation."""

    log_probability: float
    """Sum over its tokens, nats."""
    tokens: int
    bytes: int
    """UTF-8 bytes of the continuation, its leading space included (the OLMES convention)."""
    characters: int
    greedy: bool
    """Whether greedy decoding would have produced exactly this continuation."""
    dropped: int = 0
    """Worked examples that were left out of the context, which would not have fitted."""


def score_requests(
    model: NCPModel,
    tokenizer: TextEncoder,
    requests: Sequence[Request],
    *,
    sequence_length: int,
    batch_tokens: int = 16_384,
    batch_logits: int = 1 << 26,
    share_prefixes: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score | None]:
    """Score every request; None where question and answer do not fit in `sequence_length` (or the answer has no tokens).

    The other arguments are those of `score_tokens`.
    """
    answers = list(dict.fromkeys(request.continuation for request in requests))
    encoded = tokenizer.encode_batch(answers)
    ids = {text: [int(i) for i in tokens] for text, tokens in zip(answers, encoded, strict=True)}
    longest: dict[str, int] = {}
    for request in requests:
        length = len(ids[request.continuation])
        longest[request.group] = max(longest.get(request.group, 0), length)
    contexts = fit_prompts(
        [
            Prompt(
                context=request.context,
                starts=request.starts,
                room=sequence_length + 1 - longest[request.group],
            )
            for request in requests
        ],
        tokenizer.encode_batch,
        tokenizer.eos_id,
    )
    asked = [index for index, context in enumerate(contexts) if context is not None]
    found = score_tokens(
        model,
        [
            (context.ids, ids[request.continuation])
            for request, context in zip(requests, contexts, strict=True)
            if context
        ],
        pad_id=tokenizer.eos_id,
        sequence_length=sequence_length,
        batch_tokens=batch_tokens,
        batch_logits=batch_logits,
        share_prefixes=share_prefixes,
        progress=progress,
    )
    scores: list[Score | None] = [None] * len(requests)
    for index, score in zip(asked, found, strict=True):
        continuation, context = requests[index].continuation, contexts[index]
        if score is not None and context is not None:
            scores[index] = Score(
                log_probability=score.log_probability,
                tokens=len(ids[continuation]),
                bytes=len(continuation.encode()),
                characters=len(continuation),
                greedy=score.greedy,
                dropped=context.dropped,
            )
    return scores


def score_tokens(
    model: NCPModel,
    pairs: Sequence[Pair],
    *,
    pad_id: int,
    sequence_length: int,
    batch_tokens: int = 16_384,
    batch_logits: int = 1 << 26,
    share_prefixes: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[TokenScore | None]:
    """Score (context, continuation) pairs of tokens; contexts too long are truncated from the left, as harnesses do.

    A batch holds at most `batch_tokens` padded tokens and `batch_logits` logit elements, or one row. `progress` is
    called with (pairs done, pairs in all) after each batch. The model is left in the mode it was found in.
    """
    scores: list[TokenScore | None] = [None] * len(pairs)
    rows = merge_prefixes(token_rows(pairs, sequence_length))
    done = len(pairs) - sum(len(row.reads) for row in rows)
    stems, common, rows = split_stems(rows, saving=SAVING) if share_prefixes else ([], 0, rows)
    rows.sort(key=lambda row: len(row.ids), reverse=True)
    stems.sort(key=lambda stem: len(stem.ids), reverse=True)
    most_positions = max(1, batch_logits // model.spec.vocab_size)
    training = model.training
    model.eval()
    try:
        for found in chain(
            _run(
                stems,
                _stem_size,
                batch_tokens,
                most_positions,
                lambda batch: score_stems(model, batch, pad_id, common),
            ),
            _run(
                rows, _row_size, batch_tokens, most_positions, lambda batch: _score_rows(model, batch, pad_id)
            ),
        ):
            for index, score in found:
                scores[index] = score
            done += len(found)
            if progress is not None:
                progress(done, len(pairs))
    finally:
        model.train(training)
    return scores


Item = TypeVar("Item", Row, Stem)
Found = list[tuple[int, TokenScore]]


def _row_size(row: Row) -> tuple[int, int, int]:
    """(rows, length, positions) that a batch needs for it."""
    return 1, len(row.ids), row.positions


def _stem_size(stem: Stem) -> tuple[int, int, int]:
    return len(stem.rows), len(stem.ids) + stem.longest_branch, len(stem.rows) * (1 + stem.longest_branch)


def _run(
    items: Sequence[Item],
    size: Callable[[Item], tuple[int, int, int]],
    batch_tokens: int,
    most_positions: int,
    score: Callable[[Sequence[Item]], Found],
) -> Iterator[Found]:
    """Score consecutive items (longest first) in batches within both budgets, or of one item that exceeds them."""
    batch: list[Item] = []
    rows = length = positions = 0
    for item in items:
        more_rows, its_length, more_positions = size(item)
        longer = max(length, its_length)
        full = (rows + more_rows) * longer > batch_tokens or positions + more_positions > most_positions
        if batch and full:
            yield score(batch)
            batch, rows, longer, positions = [], 0, its_length, 0
        batch.append(item)
        rows, length, positions = rows + more_rows, longer, positions + more_positions
    if batch:
        yield score(batch)


@torch.inference_mode()
def _score_rows(model: nn.Module, batch: Sequence[Row], pad_id: int) -> Found:
    device = model_device(model)
    length = max(len(row.ids) for row in batch)
    input_ids = torch.full((len(batch), length), pad_id, dtype=torch.int64)
    for number, row in enumerate(batch):
        input_ids[number, : len(row.ids)] = torch.tensor(row.ids)
    reads = [
        (
            read.index,
            range(number * length + read.start, number * length + read.start + len(read.targets)),
            read.targets,
        )
        for number, row in enumerate(batch)
        for read in row.reads
    ]
    # Choices of one question often share positions: each distinct one is projected to the vocabulary once.
    flat = torch.tensor([position for _, positions, _ in reads for position in positions])
    distinct, inverse = flat.unique(return_inverse=True)
    logits: Tensor = logits_at(model, input_ids.to(device), distinct.to(device))
    return score_reads(logits, inverse.to(device), [(index, targets) for index, _, targets in reads])
