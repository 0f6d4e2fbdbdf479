"""Metrics of one task, every one derived from the scorer's table.

A question counts only when all that it needs was scored; otherwise it is *skipped* and counted as such. A task of
which nothing was scored has `questions == 0` and None everywhere, never a division by zero.

The choices of a question are ranked by four scores: the log-probability itself, and the log-probability per token,
per character and per UTF-8 byte of the continuation (its leading space counts, as in OLMES). With the unconditional
twins at hand also by PMI, log p(choice | question) - log p(choice | no question). Ties go to the first choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import Score


@dataclass(frozen=True, kw_only=True)
class TaskMetrics:
    """Numbers of one task; None where the task has no such number."""

    questions: int
    """Scored questions: the n of every mean below."""
    skipped: int
    """Questions left out because question and answer are longer than the model's window."""
    n_truncated: int
    """Questions among the scored whose prompt lost worked examples to fit the window."""
    invalid: int
    """Questions with a log-probability that is no number. Where there is one, every score below is None: a model that says
    NaN answers nothing."""
    accuracy: float | None
    accuracy_stderr: float | None
    accuracy_per_token: float | None
    accuracy_per_token_stderr: float | None
    accuracy_per_char: float | None
    accuracy_per_char_stderr: float | None
    accuracy_per_byte: float | None
    accuracy_per_byte_stderr: float | None
    accuracy_pmi: float | None
    accuracy_pmi_stderr: float | None
    chance: float | None
    """Accuracy of guessing."""
    bits_per_byte: float | None
    """Mean over questions of the gold answer's bits per byte. Lower is better, and never at chance."""
    bits_per_byte_stderr: float | None
    nats_per_token: float | None
    """Of the gold answers together: total nats by total tokens."""
    greedy_match: float | None
    """Share of questions whose gold answer greedy decoding reproduces exactly."""


def task_metrics(requests: Sequence[Request], scores: Sequence[Score | None]) -> TaskMetrics:
    """Metrics of the requests of one task; `scores[i]` belongs to `requests[i]`."""
    questions: dict[str, list[tuple[Request, Score | None]]] = {}
    for request, score in zip(requests, scores, strict=True):
        questions.setdefault(request.group, []).append((request, score))
    scored = [
        _Question.build(rows) for rows in questions.values() if all(score is not None for _, score in rows)
    ]
    invalid = sum(not question.valid for question in scored)
    if invalid:
        scored = []
    choosable = [question for question in scored if len(question.choices) > 1]
    gold = [question.gold for question in scored]
    bits = [-score.log_probability / math.log(2) / score.bytes for score in gold if score.bytes]
    with_twins = choosable if all(question.twins for question in choosable) else []
    correct = {
        "accuracy": [q.correct(lambda score: score.log_probability) for q in choosable],
        "accuracy_per_token": [
            q.correct(lambda score: score.log_probability / score.tokens) for q in choosable
        ],
        "accuracy_per_char": [
            q.correct(lambda score: score.log_probability / score.characters) for q in choosable
        ],
        "accuracy_per_byte": [
            q.correct(lambda score: score.log_probability / score.bytes) for q in choosable
        ],
        "accuracy_pmi": [q.correct_by_pmi() for q in with_twins],
    }
    return TaskMetrics(
        questions=len(scored),
        skipped=sum(any(score is None for _, score in rows) for rows in questions.values()),
        n_truncated=sum(question.truncated for question in scored),
        invalid=invalid,
        **{name: mean(values) for name, values in correct.items()},
        **{f"{name}_stderr": standard_error(values) for name, values in correct.items()},
        chance=mean(len(question.golds) / len(question.choices) for question in choosable),
        bits_per_byte=mean(bits),
        bits_per_byte_stderr=standard_error(bits),
        nats_per_token=-sum(s.log_probability for s in gold) / sum(s.tokens for s in gold) if gold else None,
        greedy_match=mean(float(score.greedy) for score in gold),
    )


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean; None of nothing."""
    values = list(values)
    return math.fsum(values) / len(values) if values else None


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean, from the sample variance; None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    choices: dict[int, Score]
    twins: dict[int, Score]
    golds: frozenset[int]

    @classmethod
    def build(cls, rows: Iterable[tuple[Request, Score | None]]) -> _Question:
        choices: dict[int, Score] = {}
        twins: dict[int, Score] = {}
        golds = set()
        for request, score in rows:
            assert score is not None
            (twins if request.unconditional else choices)[request.choice] = score
            if request.gold:
                golds.add(request.choice)
        return cls(choices=dict(sorted(choices.items())), twins=twins, golds=frozenset(golds))

    @property
    def valid(self) -> bool:
        every = (*self.choices.values(), *self.twins.values())
        return all(math.isfinite(score.log_probability) for score in every)

    @property
    def truncated(self) -> bool:
        return any(score.dropped for score in self.choices.values())

    @property
    def gold(self) -> Score:
        return self.choices[min(self.golds)]

    def correct(self, value: Callable[[Score], float]) -> float:
        best = max(self.choices, key=lambda choice: value(self.choices[choice]))
        return float(best in self.golds)

    def correct_by_pmi(self) -> float:
        def pmi(choice: int) -> float:
            return self.choices[choice].log_probability - self.twins[choice].log_probability

        return float(max(self.choices, key=pmi) in self.golds)
