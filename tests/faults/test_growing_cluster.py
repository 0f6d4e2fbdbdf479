"""A cluster that starts with a head and no worker, as in jobs/deploy: Ray's autoscaler buys nodes when steps ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import SMALL, ncp
from tests.ray_cluster import RayHead

pytestmark = pytest.mark.matrix


def test_staging_and_training_bring_their_own_nodes(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "store"
    with RayHead(tmp_path, num_cpus=0, grows_by=2) as head:
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        code, output = ncp(
            storage,
            "submit",
            SMALL,
            "runtime.cluster_grows=true",
            "--address",
            head.address,
            "--follow",
            keep_ray=True,
        )
    assert code == 0, output
    assert "the cluster will have to grow for training: 2 x 0.5 CPU needed" in output, output
    assert_same_trajectory(storage, uninterrupted, STOP)
