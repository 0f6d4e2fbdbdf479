"""From requests to the rows of tokens a model reads, each read as seldom as causality allows.

A row is one input sequence and the continuations whose log-probabilities can be read off it. Two savings are made
before any model runs, and neither changes what is computed. A row that is a prefix of another is dropped and read off
the longer one: the lettered choices of a question are one row. And rows that share a context can be run as one stem
with branches, given a model that keeps its state (`shared_prefix`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Pair = tuple[Sequence[int], Sequence[int]]
"""Context and continuation, as tokens; the context is not empty."""


class Read(NamedTuple):
    """One continuation within a row."""

    index: int
    """Which pair."""
    start: int
    """Position whose logits predict the first target: the last token of the context."""
    targets: Sequence[int]


@dataclass(kw_only=True, slots=True)
class Row:
    """One input sequence: context, then a continuation without its last token."""

    ids: list[int]
    reads: list[Read] = field(default_factory=list)

    @property
    def positions(self) -> int:
        """Logits read off it."""
        return sum(len(read.targets) for read in self.reads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stem:
    """Rows with one context, to be run once, and what follows it in each."""

    ids: list[int]
    rows: list[Row]

    @property
    def longest_branch(self) -> int:
        return max(len(row.ids) for row in self.rows) - len(self.ids)


def token_rows(pairs: Iterable[Pair], sequence_length: int) -> list[Row]:
    """One row a pair. Contexts are truncated from the left to fit; a continuation that alone does not fit has no row."""
    rows = []
    for index, (context, continuation) in enumerate(pairs):
        if not 1 <= len(continuation) <= sequence_length:
            continue
        kept = list(context[-(sequence_length - len(continuation) + 1) :])
        read = Read(index, len(kept) - 1, continuation)
        rows.append(Row(ids=kept + list(continuation[:-1]), reads=[read]))
    return rows


def merge_prefixes(rows: Iterable[Row]) -> list[Row]:
    """Drop every row that is a prefix of another, moving what is read off it to the longer one."""
    kept: list[Row] = []
    # In lexicographic order all that starts with a row follows it, so walking backwards meets the longest first.
    for row in sorted(rows, key=lambda row: row.ids, reverse=True):
        if kept and kept[-1].ids[: len(row.ids)] == row.ids:
            kept[-1].reads.extend(row.reads)
        else:
            kept.append(row)
    return kept


def split_stems(rows: Iterable[Row], *, saving: float) -> tuple[list[Stem], int, list[Row]]:
    """Stems, how many first tokens they all share, and the rows to run apart.

    If running what all contexts share (the worked examples of a task) once, and each context once, saves that share of
    the tokens, every context becomes a stem. Otherwise only the contexts of several rows do for which it pays.
    """
    by_context: dict[tuple[int, ...], list[Row]] = {}
    apart: list[Row] = []
    for row in rows:
        starts = {read.start for read in row.reads}
        if len(starts) == 1:
            by_context.setdefault(tuple(row.ids[: starts.pop() + 1]), []).append(row)
        else:
            apart.append(row)
    stems = [Stem(ids=list(context), rows=group) for context, group in by_context.items()]
    common = _common_prefix([stem.ids for stem in stems])
    if _saved(stems, common) >= saving:
        return stems, common, apart
    paying = [stem for stem in stems if len(stem.rows) > 1 and _saved([stem], 0) >= saving]
    kept = {id(stem) for stem in paying}
    apart += [row for stem in stems if id(stem) not in kept for row in stem.rows]
    return paying, 0, apart


def _saved(stems: Sequence[Stem], common: int) -> float:
    """Share of the tokens that need not run."""
    apart = sum(len(row.ids) for stem in stems for row in stem.rows)
    branches = sum(len(row.ids) - len(stem.ids) for stem in stems for row in stem.rows)
    together = common + sum(len(stem.ids) - common for stem in stems) + branches
    return 1 - together / apart if apart else 0.0


def _common_prefix(sequences: Sequence[list[int]]) -> int:
    """Length of the longest common prefix that leaves every sequence at least one token; 0 for fewer than two."""
    if len(sequences) < 2:
        return 0
    first, last = min(sequences), max(sequences)
    shortest = min(len(sequence) for sequence in sequences)
    return next((n for n in range(shortest - 1) if first[n] != last[n]), shortest - 1)
