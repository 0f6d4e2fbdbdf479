"""The head node killed -9 under a submitted run: a new cluster and the same command finish it with the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.runs.log import read_run_log
from jobs.runs.record import list_runs
from pipeline.storage import Storage
from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import SMALL, copy_staged, milestones, ncp, wait_for
from tests.ray_cluster import RayHead

pytestmark = pytest.mark.matrix


def _submit(head: RayHead, storage: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, str]:
    for name, value in head.environment.items():
        monkeypatch.setenv(name, value)
    return ncp(storage, "submit", SMALL, "--address", head.address, *more, keep_ray=True)


def test_a_killed_head_loses_nothing_and_its_log_stays_readable(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)
    with RayHead(tmp_path) as head:
        code, output = _submit(head, storage, monkeypatch)
        assert code == 0 and "submitted to" in output and "-a1;" in output, output
        wait_for(lambda: 20 in milestones(storage, "stage1"))
        head.kill()
    reached = milestones(storage, "stage1")
    assert STOP not in reached
    opened = Storage(str(storage))
    (run,) = list_runs(opened)
    assert "stage1: started" in "".join(read_run_log(opened, run))  # the cluster is gone, the log is not
    with RayHead(tmp_path) as head:
        code, output = _submit(head, storage, monkeypatch, "--follow")
        assert code == 0 and "-a2;" in output, output
    assert_same_trajectory(storage, uninterrupted, STOP)
    assert os.path.exists(storage / "runs" / run / "submissions" / "000002.json")
