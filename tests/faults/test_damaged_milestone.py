"""The milestone at a stage's end is damaged after the stage was done: whoever comes to read it has it made again, to the same bits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from jobs.runs.alerts import alert_keys, read_alert
from pipeline.storage import Storage
from tests.faults.trajectories import assert_same_trajectory
from tests.ncp_process import ROOT, copy_staged, ncp, step_store

pytestmark = pytest.mark.matrix
RECIPE = str(ROOT / "tests" / "faults" / "two_stages.yaml")
STAGE1, STAGE2 = 20, 12


@pytest.fixture(scope="module")
def whole(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-stage run that nothing happened to."""
    storage = tmp_path_factory.mktemp("whole") / "store"
    copy_staged(uninterrupted, storage)
    code, output = ncp(storage, "run", RECIPE, "--name", "two")
    assert code == 0, output
    return storage


def _damage(storage: Path, how: str) -> str:
    """Spoil stage1's last milestone; what has to be named."""
    store = step_store(storage, "stage1")
    assert store is not None
    marker = storage / store.key / "milestones" / f"{STAGE1:09d}.json"
    data = storage / store.key / "checkpoints" / f"{STAGE1:09d}-a000001"
    match how:
        case "truncated":
            os.truncate(data / "__0_0.distcp", 1000)
            return "__0_0.distcp has 1,000 bytes"
        case "missing":
            (data / ".metadata").unlink()
            return ".metadata is missing"
    victim = marker if how == "marker" else data / "__1_0.distcp"
    bad = bytearray(victim.read_bytes())
    bad[len(bad) // 2] ^= 4
    victim.write_bytes(bad)
    return victim.name


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "marker"])
@pytest.mark.parametrize("reader", ["the next stage", "the evaluation"])
def test_a_stage_whose_last_milestone_is_damaged_makes_it_again_before_anything_starts_from_it(
    whole: Path, tmp_path: Path, how: str, reader: str
) -> None:
    storage = tmp_path / "store"
    shutil.copytree(whole, storage)
    for step in (storage / "steps").iterdir():
        if step.name.startswith(("stage2", "report")):
            shutil.rmtree(step)
        if reader == "the evaluation" and step.name.startswith("stage1-eval"):
            shutil.rmtree(step)
    if reader == "the evaluation":
        for tables in (storage / "steps").glob(f"stage1-*/evaluations/{STAGE1:09d}"):
            shutil.rmtree(tables)
    named = _damage(storage, how)
    code, output = ncp(storage, "run", RECIPE, "--name", "two")
    assert code == 0, output
    assert "retrying" not in output and "Traceback" not in output, output
    store = step_store(storage, "stage1")
    assert store is not None
    (alert,) = [
        one
        for one in (read_alert(Storage(str(storage)), key) for key in alert_keys(store.storage, store.key))
        if one.kind == "damaged_milestone"
    ]
    assert alert.severity == "error" and named in alert.message
    assert "10 steps (5,120 tokens) are computed again" in alert.message
    assert_same_trajectory(storage, whole, STAGE1, "stage1")
    assert_same_trajectory(storage, whole, STAGE2, "stage2")
