"""Killed anywhere between the last milestone of a stage and the first of the next: the same bits as no crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.load import load_recipe
from curriculum.schedule import learning_rate
from jobs.training.transition import read_transition
from tests.faults.crash_points import crash_at
from tests.faults.trajectories import assert_same_trajectory
from tests.ncp_process import ROOT, copy_staged, ncp, step_store

pytestmark = pytest.mark.matrix
RECIPE = str(ROOT / "tests" / "faults" / "two_stages.yaml")
STAGE1, STAGE2 = 20, 12

POINTS = [
    "driver:before:stage1-.*/milestones/000000020.json",
    "driver:after:stage1-.*/milestones/000000020.json",
    "driver:before:stage1-eval-.*/lease/.*json",
    "driver:after:stage1-eval-.*/receipt.json",
    "driver:before:stage2-.*/identity.json",
    "driver:after:stage2-.*/transition.json",
    "driver:before:stage2-.*/metrics/.*start.json",
    "driver:after:stage2-.*/metrics/.*start.json",
    "worker:before:stage2-.*/metrics/.*start.json",
    "driver:before:stage2-.*/metrics/.*jsonl",
    "worker:before:stage2-.*/milestones/.*json",
    "driver:after:stage2-.*/milestones/.*json",
]


@pytest.fixture(scope="module")
def two_stages(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-stage run that nothing happened to."""
    storage = tmp_path_factory.mktemp("two-stages") / "store"
    copy_staged(uninterrupted, storage)
    code, output = ncp(storage, "run", RECIPE)
    assert code == 0, output
    return storage


def test_the_banner_says_what_is_carried_and_what_starts_anew(two_stages: Path) -> None:
    store = step_store(two_stages, "stage2")
    assert store is not None
    transition = read_transition(store.storage, store.key)
    assert transition is not None
    stage = load_recipe(RECIPE).stages["stage2"]
    assert transition["from"] == {"stage": "stage1", "step": STAGE1}
    assert transition["carried"] == "weights+optimizer"
    assert transition["peak_lr"] == 1e-3
    assert (
        transition["first_lr"] == learning_rate(stage, 0) == pytest.approx(1e-3 * 11 / 12)
    )  # of 12 steps to 0
    assert (transition["seed"], transition["data_position"]) == (5, 0)
    assert transition["tokens_total"] == STAGE1 * 512
    _, log = ncp(two_stages, "logs", next((two_stages / "runs").iterdir()).name)
    assert "stage2 starts from stage1 step 20 (weights+optimizer): LR 0.000917 (peak 0.001)" in log


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_between_two_stages_changes_no_bit(point: str, two_stages: Path, tmp_path: Path) -> None:
    storage = tmp_path / "store"
    copy_staged(two_stages, storage)
    code, output, key = crash_at(storage, point, "run", RECIPE)
    assert key, f"never came to {point}:\n{output}"
    if point.startswith("driver"):
        assert code == -9, output
        code, output = ncp(storage, "run", RECIPE)
    assert code == 0, output
    assert_same_trajectory(storage, two_stages, STAGE1, "stage1")
    assert_same_trajectory(storage, two_stages, STAGE2, "stage2")
