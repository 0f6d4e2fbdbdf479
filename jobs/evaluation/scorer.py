"""The scorer: log-probabilities of continuations, one table from which every metric derives.

Conventions (those of `ai2-olmo-eval` 0.9.0, with its faults left out):

- Context and continuation are encoded separately; no BOS. An empty context becomes one EOS, the token that precedes
  every document in training.
- Only contexts are truncated, from the left. A continuation longer than the window is *skipped*, never cut.
- The model is causal, so rows are padded on the right, and a request whose input is a prefix of another's is read off
  the longer row: the lettered choices of one question cost one row.

What is computed for a request does not depend on the other requests. What floating point makes of it may: a matrix
product may round differently in another batch shape, so log-probabilities agree across batchings to about 1e-5
relative in float32, not bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from jobs.evaluation.forward import logits_at, model_device
from jobs.evaluation.requests import Request


class TextEncoder(Protocol):
    """What the scorer needs of a tokenizer (`pipeline.data.tokenizer.Tokenizer`)."""

    @property
    def eos_id(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

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


@dataclass(kw_only=True, slots=True)
class _Row:
    """One input sequence and the continuations read off it."""

    ids: list[int]
    reads: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """(request index, position whose logits predict the first target, target ids)."""

    @property
    def positions(self) -> int:
        return sum(len(targets) for _, _, targets in self.reads)


def score_requests(
    model: nn.Module,
    tokenizer: TextEncoder,
    requests: Sequence[Request],
    *,
    sequence_length: int,
    batch_tokens: int = 16_384,
    batch_logits: int = 1 << 26,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score | None]:
    """Score every request; None where the continuation does not fit in `sequence_length` (or has no tokens).

    A batch holds at most `batch_tokens` padded tokens and `batch_logits` logit elements, or one row. `progress` is
    called with (requests done, requests in all) after each batch. The model is left in the mode it was found in.
    """
    scores: list[Score | None] = [None] * len(requests)
    rows = _merge_prefixes(_encode(tokenizer, requests, sequence_length))
    rows.sort(key=lambda row: len(row.ids), reverse=True)
    done = len(requests) - sum(len(row.reads) for row in rows)
    training = model.training
    model.eval()
    try:
        for batch in _batches(rows, batch_tokens, batch_logits // tokenizer.vocab_size):
            reads = _score_batch(model, batch, tokenizer.eos_id)
            for index, tokens, log_probability, greedy in reads:
                continuation = requests[index].continuation
                scores[index] = Score(
                    log_probability=log_probability,
                    tokens=tokens,
                    bytes=len(continuation.encode()),
                    characters=len(continuation),
                    greedy=greedy,
                )
            done += len(reads)
            if progress is not None:
                progress(done, len(requests))
    finally:
        model.train(training)
    return scores


def _encode(tokenizer: TextEncoder, requests: Sequence[Request], sequence_length: int) -> list[_Row]:
    """One row a request: context truncated from the left, then the continuation without its last token."""
    texts = list(
        dict.fromkeys(text for request in requests for text in (request.context, request.continuation))
    )
    ids = {
        text: [int(i) for i in encoded]
        for text, encoded in zip(texts, tokenizer.encode_batch(texts), strict=True)
    }
    rows = []
    for index, request in enumerate(requests):
        context = ids[request.context] if request.context else [tokenizer.eos_id]
        continuation = ids[request.continuation]
        if not 1 <= len(continuation) <= sequence_length:
            continue
        context = context[-(sequence_length - len(continuation) + 1) :]
        rows.append(_Row(ids=context + continuation[:-1], reads=[(index, len(context) - 1, continuation)]))
    return rows


def _merge_prefixes(rows: list[_Row]) -> list[_Row]:
    """Drop every row that is a prefix of another, moving what is read off it to the longer one."""
    rows = sorted(rows, key=lambda row: row.ids)
    kept: list[_Row] = []
    # In lexicographic order everything that starts with a row follows it, so walking backwards meets the longest first.
    for row in reversed(rows):
        if kept and kept[-1].ids[: len(row.ids)] == row.ids:
            kept[-1].reads.extend(row.reads)
        else:
            kept.append(row)
    return kept


def _batches(rows: Sequence[_Row], batch_tokens: int, batch_positions: int) -> Iterator[list[_Row]]:
    """Consecutive rows (longest first) within both budgets; a row that alone exceeds one is a batch of its own."""
    batch: list[_Row] = []
    positions = 0
    for row in rows:
        full = (len(batch) + 1) * len(batch[0].ids) > batch_tokens if batch else False
        if batch and (full or positions + row.positions > batch_positions):
            yield batch
            batch, positions = [], 0
        batch.append(row)
        positions += row.positions
    if batch:
        yield batch


@torch.inference_mode()
def _score_batch(model: nn.Module, batch: Sequence[_Row], pad_id: int) -> list[tuple[int, int, float, bool]]:
    """(request index, tokens, summed log-probability, greedy match) of everything read off the rows."""
    device = model_device(model)
    length = max(len(row.ids) for row in batch)
    input_ids = torch.full((len(batch), length), pad_id, dtype=torch.int64)
    flat: list[int] = []
    targets: list[int] = []
    reads: list[tuple[int, int]] = []
    for number, row in enumerate(batch):
        input_ids[number, : len(row.ids)] = torch.tensor(row.ids)
        for index, start, continuation in row.reads:
            first = number * length + start
            flat.extend(range(first, first + len(continuation)))
            targets.extend(continuation)
            reads.append((index, len(continuation)))
    # Choices of one question often share positions: each distinct one is projected to the vocabulary once.
    distinct, inverse = torch.tensor(flat).unique(return_inverse=True)
    logits = logits_at(model, input_ids.to(device), distinct.to(device))
    target = torch.tensor(targets, device=device)
    inverse = inverse.to(device)
    log_probabilities: Tensor = logits[inverse, target] - logits.logsumexp(-1)[inverse]
    matches: Tensor = logits.argmax(-1)[inverse] == target
    sizes = [size for _, size in reads]
    sums = [part.sum() for part in log_probabilities.double().split(sizes)]
    greedy = [part.all() for part in matches.split(sizes)]
    values = zip(torch.stack(sums).tolist(), torch.stack(greedy).tolist(), strict=True)
    return [(index, size, value, match) for (index, size), (value, match) in zip(reads, values, strict=True)]
