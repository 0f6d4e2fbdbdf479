"""The transition, stated: what is carried over, what starts anew, and where a resumed stage goes on."""

from __future__ import annotations

from dataclasses import replace

from curriculum.load import load_recipe
from curriculum.schedule import learning_rate
from jobs.training.train_job import Parent, TrainJob
from jobs.training.transition import describe_transition, transition_banner

RECIPE = load_recipe("demo")
JOB = TrainJob(
    storage_url="memory://x",
    step_key="steps/stage2-0",
    attempt=1,
    run="r",
    stage_name="stage2",
    stage=RECIPE.stages["stage2"],
    model=RECIPE.model,
    precision=RECIPE.precision,
    shards={},
    parent=Parent(stage="stage1", step_key="steps/stage1-0", step=200, load="weights+optimizer"),
    tokens_before=819_200,
    stop_step=50,
    runtime=RECIPE.runtime,
)


def test_a_new_stage_has_a_rate_a_seed_and_a_position_of_its_own() -> None:
    transition = describe_transition(JOB, None)
    assert transition["first_lr"] == learning_rate(JOB.stage, 0)
    assert (transition["seed"], transition["data_position"], transition["tokens_total"]) == (1337, 0, 819_200)
    assert "stage2 starts from stage1 step 200 (weights+optimizer): LR" in transition_banner(transition)


def test_the_first_stage_starts_from_its_seed() -> None:
    assert "starts from its seed" in transition_banner(describe_transition(replace(JOB, parent=None), None))


def test_a_resumed_stage_goes_on_from_its_own_milestone() -> None:
    transition = describe_transition(JOB, 20)
    assert transition["first_lr"] == learning_rate(JOB.stage, 20)
    assert (transition["data_position"], transition["tokens_total"]) == (20 * 16, 819_200 + 20 * 4096)
    assert "stage2 goes on from its own step 20: LR" in transition_banner(transition)
