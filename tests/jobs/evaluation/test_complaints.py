"""The two complaints of NCP's list that are about evaluation; the others are in tests/pipeline/data/test_complaints.py."""

from __future__ import annotations

import math

import pytest

from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import Score


def _request(continuation: str, choice: int, gold: bool) -> Request:
    return Request(context="Q: which?\nA:", continuation=continuation, group="0", choice=choice, gold=gold)


def _score(nats: float, text: str) -> Score:
    size = len(text.encode())
    return Score(log_probability=-nats, tokens=1, bytes=size, characters=len(text), greedy=False)


@pytest.mark.parametrize("gold", range(4))
def test_11_bits_per_byte_is_that_of_the_gold_answer_whichever_it_is(gold: int) -> None:
    """OLMo#685: only questions whose answer is the first choice were counted."""
    answers = [" A", " BB", " CCC", " DDDD"]
    requests = [_request(text, choice, choice == gold) for choice, text in enumerate(answers)]
    metrics = task_metrics(
        requests, [_score((1 + choice) * math.log(2), text) for choice, text in enumerate(answers)]
    )
    assert metrics.questions == 1
    assert metrics.bits_per_byte == pytest.approx((1 + gold) / len(answers[gold]))


@pytest.mark.parametrize(("continuation", "size"), [(" yes", 4), ("yes", 3), ("yes ", 4), (" \u00e9", 3)])
def test_30_every_byte_that_was_scored_is_counted_spaces_included(continuation: str, size: int) -> None:
    """lighteval#1264: the space between context and answer was scored and left out of the bytes, or the other way round."""
    metrics = task_metrics([_request(continuation, 0, True)], [_score(math.log(2) * size, continuation)])
    assert metrics.bits_per_byte == pytest.approx(1.0)
