"""Told to stop, a worker killed, the driver killed: the run goes on from the last milestone and ends in the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import (
    SMALL,
    NcpProcess,
    copy_staged,
    milestones,
    ncp,
    step_store,
    training_workers,
)


def test_a_run_that_is_stopped_and_loses_a_worker_and_its_driver_changes_no_bit(
    uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)

    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: bool(milestones(storage, "stage1")))
    output = run.kill(signal.SIGTERM)
    assert run.process.returncode == 4, output
    assert "run the same command again to resume" in output
    stopped_at = max(milestones(storage, "stage1"))
    assert 0 < stopped_at < STOP and stopped_at % 10, "no milestone of its own when told to stop"
    _, status = ncp(storage, "status")
    assert "stopped" in status

    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    workers = training_workers(run.process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    run.wait_until(lambda: 30 in milestones(storage, "stage1"))
    output = run.kill(signal.SIGKILL)
    assert "stage1: retrying" in output
    reached = milestones(storage, "stage1")
    assert STOP not in reached

    code, output = ncp(storage, "run", SMALL)  # at once
    assert code == 0, output
    store = step_store(storage, "stage1")
    assert store is not None
    marker, progress = store.milestone(STOP), store.progress()
    assert marker is not None and marker["attempt"] == 4
    assert progress is not None and progress["resumed_from"] >= max(reached)
    assert_same_trajectory(storage, uninterrupted, STOP)
