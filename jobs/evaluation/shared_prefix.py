"""Choices of one question share the run of their context, the predicted concepts of its chunks included.

Five worked examples and a question are hundreds of tokens; its four answers are a few each. The worked examples, equal
for all questions of a task, run once a batch in a generation session; the session's state is copied for every
question; and again for every answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jobs.evaluation.token_rows import Stem
from ncp_model import NCPModel
from ncp_model.session import GenerationSession


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScore:
    """Summed log-probability of a continuation in nats, and whether greedy decoding would produce it."""

    log_probability: float
    greedy: bool


@torch.inference_mode()
def score_stems(
    model: NCPModel, batch: Sequence[Stem], pad_id: int, common: int = 0
) -> list[tuple[int, TokenScore]]:
    """(pair index, score) of everything read off the stems' rows. The first `common` tokens of all stems are equal."""
    longest = max(len(stem.ids) + stem.longest_branch for stem in batch)
    session = GenerationSession(model, 1 if common else len(batch), longest)
    if common:
        session.append(torch.tensor([batch[0].ids[:common]]), last_only=True)
        session = session.select([0] * len(batch))
    stems, lengths = _padded([stem.ids[common:] for stem in batch], pad_id)
    first = session.append(stems, lengths, last_only=True)
    owners = [number for number, stem in enumerate(batch) for _ in stem.rows]
    branches, counts = _padded([row.ids[len(stem.ids) :] for stem in batch for row in stem.rows], pad_id)
    # Row r of the table: the logits after the stem, then those after each token of branch r.
    table = first[owners].unsqueeze(1)
    if branches.shape[1]:
        table = torch.cat((table, session.select(owners).append(branches, counts)), dim=1)
    width = table.shape[1]
    rows = [row for stem in batch for row in stem.rows]
    reads = [(read.index, read.targets) for row in rows for read in row.reads]
    positions = [
        number * width + offset
        for number, row in enumerate(rows)
        for read in row.reads
        for offset in range(len(read.targets))
    ]
    logits = table.flatten(0, 1).to(torch.promote_types(table.dtype, torch.float32))
    return score_reads(logits, torch.tensor(positions, device=logits.device), reads)


def score_reads(
    logits: Tensor, rows: Tensor, reads: Sequence[tuple[int, Sequence[int]]]
) -> list[tuple[int, TokenScore]]:
    """Scores of continuations laid end to end: target i is predicted by `logits[rows[i]]`.

    logits [n, V] float32, rows int64 [sum of targets], reads (index, targets).
    """
    targets = torch.tensor([token for _, tokens in reads for token in tokens], device=logits.device)
    log_probabilities = logits[rows, targets] - logits.logsumexp(-1)[rows]
    matches = logits.argmax(-1)[rows] == targets
    sizes = [len(tokens) for _, tokens in reads]
    sums = torch.stack([part.sum() for part in log_probabilities.double().split(sizes)]).tolist()
    greedy = torch.stack([part.all() for part in matches.split(sizes)]).tolist()
    return [
        (index, TokenScore(log_probability=total, greedy=match))
        for (index, _), total, match in zip(reads, sums, greedy, strict=True)
    ]


def _padded(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """ids [B, longest] padded on the right, lengths [B]."""
    lengths = torch.tensor([len(ids) for ids in sequences])
    padded = torch.full((len(sequences), int(lengths.max())), pad_id, dtype=torch.int64)
    for row, ids in enumerate(sequences):
        padded[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return padded, lengths
