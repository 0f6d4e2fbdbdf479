"""The learning rate: its shape, its ends, and that the stop does not bend it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.load import load_recipe
from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schedule import learning_rate
from curriculum.schema import ScheduleSpec, StageSpec
from curriculum.tokens import horizon_steps, stage_steps


def _stage(kind: str, *, steps: int, horizon: int, warmup: int = 0, final_ratio: float = 0.1) -> StageSpec:
    return StageSpec(
        mixture={"a": 1.0},
        tokens=steps * 100,
        horizon_tokens=horizon * 100,
        sequence_length=100,
        global_batch_tokens=100,
        optimizer=OptimizerSpec(lr=1.0),
        schedule=ScheduleSpec(kind=kind, warmup_steps=warmup, final_ratio=final_ratio),
    )


def test_warm_up_rises_linearly_from_the_first_step_to_the_peak() -> None:
    stage = _stage("cosine", steps=100, horizon=100, warmup=4)
    assert [learning_rate(stage, step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_is_half_way_in_the_middle_and_final_at_the_last_step_before_the_horizon() -> None:
    stage = _stage("cosine", steps=100, horizon=100)
    assert learning_rate(stage, 49) == pytest.approx(0.55)
    assert learning_rate(stage, 99) == pytest.approx(0.1)
    assert learning_rate(stage, 1000) == pytest.approx(0.1)


def test_linear_reaches_zero_at_its_last_step() -> None:
    stage = _stage("linear", steps=10, horizon=10, final_ratio=0.0)
    assert [learning_rate(stage, step) for step in (0, 4, 9)] == pytest.approx([0.9, 0.5, 0.0])


def test_olmo_3_stage_1_follows_its_cosine_then_the_second_half_of_a_longer_one() -> None:
    """Published or derived figures: 2.0712352850360292e-4 at 2.0T tokens; 3.93e-5 at the stop of 5.93T."""
    stage = load_recipe("olmo3-7b-vanilla-32").stages["stage1"]
    assert learning_rate(stage, 1999) == 3e-4
    assert learning_rate(stage, 476_837) == pytest.approx(2.0712352850360292e-4, rel=1e-7)
    assert learning_rate(stage, 597_045) == pytest.approx(1.65e-4, rel=1e-4)
    assert learning_rate(stage, 597_046) == pytest.approx(1.65e-4, rel=1e-4)
    assert learning_rate(stage, 1_413_813) == pytest.approx(3.93e-5, rel=1e-3)


def test_ncp_stage_1_ends_its_cosine_beyond_its_stop() -> None:
    """The public training flags: 6e-5 to 6e-6 over 1,430,512 steps, 2,000 of warm-up; 6.27e-6 at the stop."""
    recipe = load_recipe("olmo3-7b-ncp")
    stage = recipe.stages["stage1"]
    assert (stage_steps(stage), horizon_steps(stage)) == (1_366_138, 1_430_512)
    assert learning_rate(stage, 1999) == 6e-5
    assert learning_rate(stage, 1_366_137) == pytest.approx(6.27e-6, rel=1e-3)
    assert learning_rate(stage, 1_430_511) == pytest.approx(6e-6)
    second = recipe.stages["stage2"]
    assert stage_steps(second) == 47_684
    assert learning_rate(second, 47_683) == 0.0


def test_constant_stays_at_the_peak() -> None:
    assert learning_rate(_stage("constant", steps=10, horizon=10), 9) == 1.0


@given(st.sampled_from(["cosine", "linear", "constant"]), st.integers(1, 50), st.integers(1, 50))
def test_raising_the_stop_does_not_change_any_earlier_rate(kind: str, steps: int, more: int) -> None:
    stage = _stage(kind, steps=steps, horizon=120, warmup=3)
    longer = replace(stage, tokens=stage.tokens + 100 * more)
    assert [learning_rate(stage, s) for s in range(steps)] == [learning_rate(longer, s) for s in range(steps)]


@given(st.integers(1, 60), st.integers(0, 20))
def test_after_warm_up_the_rate_never_rises(horizon: int, warmup: int) -> None:
    for kind in ("cosine", "linear", "constant"):
        stage = _stage(kind, steps=horizon, horizon=horizon, warmup=warmup)
        rates = [learning_rate(stage, step) for step in range(warmup, horizon + 2)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(rates))


def test_steps_round_up_as_olmo_counts_them() -> None:
    stage = replace(
        _stage("cosine", steps=1, horizon=1), tokens=100_000_000_000, global_batch_tokens=2_097_152
    )
    assert stage_steps(stage) == 47_684


def test_without_a_horizon_the_stop_is_the_horizon() -> None:
    stage = replace(_stage("cosine", steps=7, horizon=7), horizon_tokens=None)
    assert horizon_steps(stage) == 7


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        learning_rate(_stage("cosine", steps=1, horizon=1), -1)
