"""The skip rule: outliers in loss or gradient norm, a window that survives a resume, and an end to patience."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curriculum.schema import StabilitySpec
from jobs.training.stability import SkipWindow, UnstableTraining

SPEC = StabilitySpec(window=16, max_skips=3)


def _judge(window: SkipWindow, loss: float, grad_norm: float) -> bool:
    return bool(window.should_skip(torch.tensor(loss), torch.tensor(grad_norm)))


def _warm(spec: StabilitySpec = SPEC) -> SkipWindow:
    window, draw = SkipWindow(spec), random.Random(0)
    for _ in range(16):
        assert not _judge(window, 4 + draw.gauss(0, 0.1), 1 + draw.gauss(0, 0.1))
    return window


def test_an_ordinary_step_is_taken_and_an_outlier_in_either_is_skipped() -> None:
    assert not _judge(_warm(), 4.1, 1.1)
    assert _judge(_warm(), 9.0, 1.0)
    assert _judge(_warm(), 4.0, 9.0)
    assert not _judge(_warm(), 0.1, 0.1)  # unusually good is no reason


def test_nothing_is_skipped_before_half_a_window_is_there() -> None:
    window = SkipWindow(SPEC)
    assert [_judge(window, loss, 1.0) for loss in (4.0, 4.1, 900.0, 4.0)] == [False] * 4


def test_too_many_skips_end_the_training_with_a_reason() -> None:
    window = _warm(StabilitySpec(window=16, max_skips=2))
    with pytest.raises(UnstableTraining, match=r"stability\.max_skips: 3 steps were skipped, more than 2"):
        for loss in (1e2, 1e4, 1e6):
            _judge(window, loss, 1.0)
            window.check()


def test_it_can_be_switched_off() -> None:
    window = SkipWindow(StabilitySpec(skip_sigmas=0))
    assert not any(_judge(window, loss, loss) for loss in (1.0,) * 200 + (1e9,))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60), st.integers(0, 59))
def test_a_resumed_window_skips_the_same_steps(losses: list[float], cut: int) -> None:
    spec = StabilitySpec(window=8, skip_sigmas=1.0, max_skips=0)
    whole = SkipWindow(spec)
    expected = [_judge(whole, loss, 1.0) for loss in losses]
    first = SkipWindow(spec)
    decisions = [_judge(first, loss, 1.0) for loss in losses[:cut]]
    second = SkipWindow(spec, first.state())
    decisions += [_judge(second, loss, 1.0) for loss in losses[cut:]]
    assert decisions == expected
    assert second.state() == whole.state()


def test_what_is_not_a_number_is_skipped_even_when_outliers_are_not() -> None:
    for spec in (SPEC, StabilitySpec(skip_sigmas=0)):
        assert _judge(SkipWindow(spec), float("nan"), 1.0) and _judge(SkipWindow(spec), 1.0, float("inf"))
