"""Evaluations that are killed, repeated, submitted, or fail: real processes, real questions, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from jobs.runs.record import list_runs
from pipeline.storage import Storage
from tests.faults.trajectories import STOP
from tests.ncp_process import ROOT, NcpProcess, milestones, ncp, step_store
from tests.ray_cluster import RayHead

pytestmark = pytest.mark.matrix

TWO_STAGES = str(ROOT / "tests" / "two_stages.yaml")
ASKED = ("--suite", "sciq_rc_0shot", "--limit", "600", "--heldout-tokens", "4096")
PIECES = 4
"""Three of SciQ, one of held-out text."""


def tables(storage: Path) -> dict[str, bytes]:
    store = step_store(storage, "stage1")
    assert store is not None
    root = Storage(str(storage))
    return {
        key: root.read_bytes(key) for key in root.keys(f"{store.key}/evaluations") if "/suites/" not in key
    }


def suites(storage: Path) -> dict[str, bytes]:
    store = step_store(storage, "stage1")
    assert store is not None
    root = Storage(str(storage))
    keys = root.keys(f"{store.key}/evaluations/{STOP:09d}/suites")
    return {key.rpartition("/")[2]: root.read_bytes(key) for key in keys}


def run_name(storage: Path) -> str:
    (run,) = list_runs(Storage(str(storage)))
    return run


@pytest.fixture(scope="module")
def evaluated(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evaluation that nothing happened to, by one actor."""
    storage = tmp_path_factory.mktemp("evaluated") / "store"
    shutil.copytree(uninterrupted, storage)
    code, output = ncp(storage, "eval", run_name(storage), *ASKED, "--actors", "1")
    assert code == 0, output
    assert len(tables(storage)) == PIECES
    return storage


@pytest.fixture
def storage(uninterrupted: Path, tmp_path: Path) -> Path:
    shutil.copytree(uninterrupted, tmp_path / "store")
    return tmp_path / "store"


def test_a_killed_driver_loses_no_piece_and_the_numbers_are_the_same(storage: Path, evaluated: Path) -> None:
    first = NcpProcess(storage, "eval", run_name(storage), *ASKED, "--actors", "1")
    first.wait_until(lambda: len(tables(storage)) >= 2)
    first.kill(signal.SIGKILL)
    before = tables(storage)
    assert 2 <= len(before) < PIECES and not suites(storage)
    code, output = ncp(storage, "eval", run_name(storage), *ASKED, "--actors", "2")
    assert code == 0, output
    after = tables(storage)
    assert {key: after[key] for key in before} == before  # not answered again
    assert suites(storage) == suites(evaluated)


def test_a_killed_actor_is_replaced_within_the_evaluation(storage: Path, evaluated: Path) -> None:
    process = NcpProcess(storage, "eval", run_name(storage), *ASKED, "--actors", "2")
    process.wait_until(lambda: len(tables(storage)) >= 1)
    (record,) = [json.loads(table) for table in list(tables(storage).values())[:1]]
    os.kill(record["process"], signal.SIGKILL)
    code, output = process.finish()
    assert code == 0, output
    assert suites(storage) == suites(evaluated)


def test_what_was_evaluated_once_is_shown_and_not_evaluated_again(evaluated: Path) -> None:
    before = tables(evaluated)
    code, output = ncp(evaluated, "eval", run_name(evaluated), *ASKED)
    assert code == 0 and "sciq_rc_0shot" in output and "started" not in output
    assert tables(evaluated) == before


def test_an_evaluation_is_a_ray_job_of_its_own_and_submitting_it_twice_is_harmless(
    storage: Path, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayHead(tmp_path) as head:
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        command = ("eval", run_name(storage), *ASKED, "--address", head.address, "--follow")
        code, output = ncp(storage, *command, keep_ray=True)
        assert code == 0 and "-eval1" in output and "sciq_rc_0shot" in output, output
        assert suites(storage) == suites(evaluated)
        before = tables(storage)
        code, output = ncp(storage, *command, keep_ray=True)
        assert code == 0 and "-eval2" in output, output
        assert tables(storage) == before


def test_a_failed_evaluation_stops_no_training_unless_a_gate_asks_for_it(tmp_path: Path) -> None:
    storage = tmp_path / "store"
    broken = "stage1.evaluation.suites=[oe:nowhere/rc]"
    gate = "stage1.gate={metric: mixture.model.bits_per_byte, max: 100.0}"
    code, output = ncp(storage, "run", TWO_STAGES, broken, gate)
    assert code == 1 and "its evaluation failed" in output, output
    assert milestones(storage, "stage2") == []
    code, output = ncp(storage, "run", TWO_STAGES, broken)
    assert code != 0 and "nowhere" in output, output
    assert milestones(storage, "stage2")[-1] == 40


def test_every_kth_milestone_is_written_kept_and_evaluated(tmp_path: Path) -> None:
    storage = tmp_path / "store"
    every = "stage1.evaluation.every_steps=12"
    code, output = ncp(storage, "run", TWO_STAGES, every, "runtime.checkpoint_every_steps=1000")
    assert code == 0, output
    for step in (12, 24, 36):
        store = step_store(storage, f"stage1-eval-{step:06d}")
        assert store is not None
        receipt = store.receipt()
        assert receipt is not None and receipt["step"] == step
    code, output = ncp(storage, "eval", run_name(storage), "--plan")
    assert code == 0 and output.count(" done ") == 6, output
