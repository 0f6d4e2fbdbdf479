"""A cluster whose worker nodes are lost, with the head as a production cluster has it: a driver and no CPUs for work.

Each node is killed whole, by SIGKILL, while it stages, trains or evaluates. The submitted run goes on by itself as soon as
another node has room: nobody submits again, and the result has the bits of a run that nothing happened to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cluster.ray_jobs import job_client
from jobs.runs.log import read_run_log
from jobs.runs.record import list_runs, read_run
from jobs.runs.status import run_status
from pipeline.storage import Storage
from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import SMALL, copy_staged, milestones, ncp, step_store, wait_for
from tests.ray_cluster import RayHead, RayWorker

pytestmark = pytest.mark.matrix
EVALUATE = "stage1.evaluation.heldout_tokens=4096"
STAGING, TRAINING, EVALUATING = "ray::Map", "RayTrainWorker", "ray::EvaluationWorker"


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHead]:
    with RayHead(tmp_path, num_cpus=0) as head:
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        yield head


@pytest.fixture(scope="module")
def evaluated(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `uninterrupted`, with its evaluations."""
    storage = tmp_path_factory.mktemp("evaluated") / "store"
    shutil.copytree(uninterrupted, storage)
    code, output = ncp(storage, "run", SMALL, EVALUATE)
    assert code == 0, output
    return storage


def submit(head: RayHead, storage: Path, *overrides: str) -> None:
    code, output = ncp(storage, "submit", SMALL, *overrides, "--address", head.address, keep_ray=True)
    assert code == 0, output


def finished(storage: Path) -> bool:
    opened = Storage(str(storage))
    return run_status(opened, newest_run(opened)).state == "done"


def log(storage: Path) -> str:
    opened = Storage(str(storage))
    return "".join(read_run_log(opened, newest_run(opened)))


def newest_run(storage: Storage) -> str:
    """The run that was submitted; a copied storage holds the one it was copied from too."""
    return max(list_runs(storage), key=lambda run: read_run(storage, run)["created"])


def test_a_node_lost_while_it_stages_is_replaced_and_costs_no_attempt(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    with RayWorker(tmp_path, head, ip="127.0.0.2") as worker:
        submit(head, storage)
        wait_for(lambda: bool(worker.pids(STAGING)))
        worker.kill()
    wait_for(lambda: "waiting for a node: 1 x 0.5 CPU needed" in log(storage))
    with RayWorker(tmp_path, head, ip="127.0.0.3"):
        wait_for(lambda: finished(storage))
    shards = step_store(storage, "shards-stdlib-prose")
    assert shards is not None
    receipt = shards.receipt()
    assert receipt is not None
    assert receipt["attempt"] == 1, "its owner was on the head, so the lost task alone is done again"
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_node_lost_while_it_trains_is_replaced_and_changes_no_bit(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)
    with RayWorker(tmp_path, head, ip="127.0.0.2") as worker:
        submit(head, storage)
        wait_for(lambda: 20 in milestones(storage, "stage1"))
        assert len(worker.pids(TRAINING)) == 2
        worker.kill()
    assert STOP not in milestones(storage, "stage1")
    wait_for(lambda: "waiting for a node: 2 x 0.5 CPU needed" in log(storage))
    with RayWorker(tmp_path, head, ip="127.0.0.3"):
        wait_for(lambda: finished(storage))
    assert "stage1: retrying" in log(storage)
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_another_node_takes_over_the_training_of_a_lost_one(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)
    with (
        RayWorker(tmp_path, head, ip="127.0.0.2", num_cpus=1) as first,
        RayWorker(tmp_path, head, ip="127.0.0.3", num_cpus=1) as second,
    ):
        submit(head, storage)
        wait_for(lambda: 20 in milestones(storage, "stage1"))
        (first if first.pids(TRAINING) else second).kill()
        wait_for(lambda: finished(storage))
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_node_that_is_drained_costs_a_milestone_and_no_retry(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    """The training worker on the drained node hears of it, all stop after the same step, and another node goes on."""
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)
    with RayWorker(tmp_path, head, ip="127.0.0.2") as worker:
        submit(head, storage, "runtime.retries=0")
        wait_for(lambda: 20 in milestones(storage, "stage1"))
        worker.drain()
        wait_for(lambda: "waiting for a node: 2 x 0.5 CPU needed" in log(storage))
        assert worker.pids(), "the node is still there: it was left, not lost"
        with RayWorker(tmp_path, head, ip="127.0.0.3"):
            wait_for(lambda: finished(storage))
    assert (
        log(storage).count("stage1: retrying")
        == log(storage).count(": its node is being drained (preemption")
        == 1
    )
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_node_lost_while_it_evaluates_is_replaced_and_the_result_is_the_same(
    head: RayHead, uninterrupted: Path, evaluated: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    shutil.copytree(uninterrupted, storage)
    with RayWorker(tmp_path, head, ip="127.0.0.2") as worker:
        submit(head, storage, EVALUATE)
        wait_for(lambda: bool(worker.pids(EVALUATING)))
        worker.kill()
    wait_for(lambda: "waiting for a node: 1 x 0.5 CPU needed" in log(storage))
    with RayWorker(tmp_path, head, ip="127.0.0.3"):
        wait_for(lambda: finished(storage))
    for name in ("untrained-eval", "stage1-eval"):
        ours, theirs = (step_store(path, name) for path in (storage, evaluated))
        assert ours is not None and theirs is not None
        mine, reference = ours.receipt(), theirs.receipt()
        assert mine is not None and reference is not None
        assert json.dumps(mine["result"]) == json.dumps(reference["result"])


def test_a_run_that_waits_for_a_node_can_be_stopped(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "store"
    copy_staged(uninterrupted, storage)
    submit(head, storage, "runtime.cluster_grows=true")  # and nobody makes it grow
    wait_for(lambda: "waiting for a node: 2 x 0.5 CPU needed, 1 live node has room for 0" in log(storage))
    (run,) = list_runs(Storage(str(storage)))
    code, output = ncp(storage, "stop", run, "--address", head.address, keep_ray=True)
    assert code == 0, output
    client = job_client(head.address)
    wait_for(lambda: str(client.get_job_status(f"{run}-a1")) == "FAILED")
    assert client.get_job_info(f"{run}-a1").driver_exit_code == 4
    assert "ended by StoppedByRequest" in log(storage)
