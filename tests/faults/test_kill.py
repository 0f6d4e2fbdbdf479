"""kill -9 in the middle of a stage: the run goes on from the last milestone and ends in the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.trajectories import assert_same_trajectory
from tests.ncp_process import (
    SMALL,
    NcpProcess,
    copy_staged,
    milestones,
    ncp,
    step_store,
    training_workers,
)

STOP = 80


@pytest.fixture
def storage(uninterrupted: Path, tmp_path: Path) -> Path:
    copy_staged(uninterrupted, tmp_path / "store")
    return tmp_path / "store"


def test_a_killed_driver_loses_nothing_and_changes_no_bit(storage: Path, uninterrupted: Path) -> None:
    first = NcpProcess(storage, "run", SMALL)
    first.wait_until(lambda: 20 in milestones(storage, "stage1"))
    first.kill(signal.SIGKILL)
    reached = milestones(storage, "stage1")
    assert STOP not in reached
    code, output = ncp(storage, "run", SMALL)  # at once
    assert code == 0, output
    store = step_store(storage, "stage1")
    assert store is not None
    marker = store.milestone(STOP)
    assert marker is not None and marker["attempt"] == 2
    progress = store.progress()
    assert progress is not None and progress["resumed_from"] >= max(reached)
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_killed_worker_is_replaced_within_the_run_and_changes_no_bit(
    storage: Path, uninterrupted: Path
) -> None:
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    workers = training_workers(run.process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    code, output = run.finish()
    assert code == 0, output
    assert "stage1: retrying" in output
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_run_told_to_stop_writes_a_milestone_says_how_to_go_on_and_exits_with_4(storage: Path) -> None:
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 10 in milestones(storage, "stage1"))
    run.process.send_signal(signal.SIGTERM)
    code, output = run.finish()
    assert code == 4, output
    assert "run the same command again to resume" in output
    assert max(milestones(storage, "stage1")) % 10, "no milestone of its own when told to stop"
    _, status = ncp(storage, "status")
    assert "stopped" in status
