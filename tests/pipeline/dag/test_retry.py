"""Retry budgets: what each class of failure costs, and what refills it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dag.retry import INFRASTRUCTURE, PREEMPTION, USER, RetryBudget, RetryPolicy

POLICY = RetryPolicy(infrastructure=2, preemption=5, backoff_seconds=1.0, backoff_limit_seconds=10.0)


def test_bad_input_is_never_tried_again() -> None:
    assert RetryBudget(POLICY).spend(USER, progressed=True) is None


def test_infrastructure_failures_without_progress_end_the_step() -> None:
    budget = RetryBudget(POLICY, draw=lambda: 1.0)
    assert [budget.spend(INFRASTRUCTURE, progressed=False) for _ in range(3)] == [1.0, 2.0, None]


def test_progress_refills_the_budget_and_shortens_the_pause() -> None:
    budget = RetryBudget(POLICY, draw=lambda: 1.0)
    pauses = [budget.spend(INFRASTRUCTURE, progressed=turn % 2 == 0) for turn in range(40)]
    assert pauses == [1.0, 2.0] * 20


def test_a_preemption_costs_no_infrastructure_retry_and_has_its_own_end() -> None:
    budget = RetryBudget(POLICY, draw=lambda: 0.0)
    assert [budget.spend(PREEMPTION, progressed=False) for _ in range(5)] == [0.5] * 5
    assert budget.left(INFRASTRUCTURE) == 2 and budget.left(PREEMPTION) == 0
    assert budget.spend(PREEMPTION, progressed=True) is None


@given(st.integers(0, 5000), st.floats(0, 1, exclude_max=True))
def test_pauses_stay_between_half_and_the_whole_of_a_bounded_doubling(failures: int, drawn: float) -> None:
    budget = RetryBudget(
        RetryPolicy(infrastructure=5001, backoff_seconds=0.5, backoff_limit_seconds=60.0), draw=lambda: drawn
    )
    pause = None
    for _ in range(failures + 1):
        pause = budget.spend(INFRASTRUCTURE, progressed=False)
    longest = min(60.0, 0.5 * 2.0 ** min(failures, 60))
    assert pause is not None and longest / 2 <= pause <= longest


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match=r"retry\.preemption: -1 is negative"):
        RetryPolicy(preemption=-1)
