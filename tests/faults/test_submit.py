"""Submitting to a real cluster: code that arrives, jobs that wait and are stopped, jobs that cannot even start."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cluster.ray_jobs import job_client
from jobs.evaluation.submission import submit_evaluation
from jobs.runs.record import list_runs
from jobs.runs.stop import SUBMISSION_VARIABLE, claim_submission
from pipeline.storage import Storage
from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import ROOT, SMALL, NcpProcess, copy_staged, milestones, ncp, step_store, wait_for
from tests.ray_cluster import RayHead, RayWorker
from tests.s3_outage import outage_proxy

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    with RayHead(tmp_path_factory.mktemp("head")) as head:
        yield head


@pytest.fixture(autouse=True)
def authorised(head: RayHead, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in head.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def storage(uninterrupted: Path, tmp_path: Path) -> Path:
    copy_staged(uninterrupted, tmp_path / "store")
    return tmp_path / "store"


WHERE = """
import json, sys
from curriculum.schema import RuntimeSpec
from jobs.cluster.ray_session import call_remote, ray_session
def where():
    import jobs
    return jobs.__file__
with ray_session(RuntimeSpec()):
    print(json.dumps(call_remote(where, num_cpus=0.5)))
"""


def where_workers_import_from(address: str, folder: Path) -> str:
    """`jobs.__file__` in a worker of the cluster, for a driver that connects to `address`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    answer = subprocess.run(
        [sys.executable, "-c", WHERE], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


def test_workers_have_the_code_of_a_driver_on_a_node(head: RayHead, tmp_path: Path) -> None:
    assert "_ray_pkg_" in where_workers_import_from(head.gcs_address, tmp_path)


def test_workers_have_the_code_of_a_driver_outside_the_cluster(head: RayHead, tmp_path: Path) -> None:
    assert "_ray_pkg_" in where_workers_import_from(head.client_address, tmp_path)


def test_a_run_whose_driver_is_outside_the_cluster(
    head: RayHead, storage: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", head.client_address)
    code, output = ncp(storage, "run", SMALL, keep_ray=True)
    assert code == 0, output
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_running_submission_is_stopped_with_a_milestone_and_says_what_is_left(
    head: RayHead, storage: Path, uninterrupted: Path
) -> None:
    submission = NcpProcess(storage, "submit", SMALL, "--address", head.address, "--follow", keep_ray=True)
    wait_for(lambda: 10 in milestones(storage, "stage1"))
    (run,) = list_runs(Storage(str(storage)))
    code, output = ncp(storage, "stop", run, "--address", head.address, keep_ray=True)
    assert code == 0, output
    assert ": runs, and ends by itself" in output and "left: stage1" in output, output
    code, output = submission.finish()
    assert code == 4, output
    assert "stage1: started" in output, "following shows the run's log"
    stopped_at = max(milestones(storage, "stage1"))
    assert stopped_at < STOP
    code, output = ncp(storage, "submit", SMALL, "--address", head.address, "--follow", keep_ray=True)
    assert code == 0, output
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_follower_that_loses_the_job_server_says_that_the_run_goes_on_and_how_to_follow_it(
    head: RayHead, storage: Path, uninterrupted: Path
) -> None:
    with outage_proxy(int(head.address.rpartition(":")[2])) as proxy:
        follower = NcpProcess(storage, "submit", SMALL, "--address", proxy.url, "--follow", keep_ray=True)
        wait_for(lambda: bool(milestones(storage, "stage1")))
        with proxy.away("refuses"):
            code, output = follower.finish()
    (run,) = list_runs(Storage(str(storage)))
    assert code == 6, output
    assert f"the run goes on; follow it again: ncp logs {run} --follow --storage {storage}" in output, output
    assert "Traceback" not in output, output
    code, output = ncp(storage, "logs", run, "--follow", keep_ray=True)
    assert code == 0, output
    assert_same_trajectory(storage, uninterrupted, STOP)


@pytest.mark.parametrize("token", ["0" * 64, None])
def test_a_cluster_that_does_not_let_us_in_is_one_line(
    head: RayHead, storage: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token is None:
        for name in head.environment:
            monkeypatch.delenv(name)
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    commands = {
        head.address: ("submit", SMALL, "--address", head.address),
        head.gcs_address: ("run", SMALL),
        head.client_address: ("run", SMALL),
    }
    for place, command in commands.items():
        if command[0] == "run":
            monkeypatch.setenv("RAY_ADDRESS", place)
        code, output = ncp(storage, *command, keep_ray=True)
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        assert code == 5, f"{place}: {output}"
        assert len(errors) == 1 and place in errors[0] and "RAY_AUTH_MODE=token" in errors[0], output
        assert "Traceback" not in output, output
    assert step_store(storage, "stage1") is None


def test_runs_of_one_name_on_two_storages_share_a_cluster(
    head: RayHead, uninterrupted: Path, tmp_path: Path
) -> None:
    ids = []
    for name in ("one", "other"):
        copy_staged(uninterrupted, tmp_path / name)
        arguments = ("submit", SMALL, "--address", head.address, "--python", "/no/python")
        code, output = ncp(tmp_path / name, *arguments, keep_ray=True)
        assert code == 0, output
        ids.append(output.split(" as ", 1)[1].split(";", 1)[0])
    assert ids[0] != ids[1] and ids[0].rpartition("-a")[0] == ids[1].rpartition("-a")[0]


def test_evaluations_of_runs_of_one_name_on_two_storages_share_a_cluster(
    head: RayHead, tmp_path: Path
) -> None:
    ids = [
        submit_evaluation(Storage(str(tmp_path / name)), head.address, "r", ["r"], python="/no/python")
        for name in ("one", "other")
    ]
    assert ids == ["r-eval1", "r-eval2"]


def test_a_submission_that_waits_is_stopped_and_starts_nothing_when_its_turn_comes(
    head: RayHead, storage: Path, tmp_path: Path
) -> None:
    opened = Storage(str(storage))
    arguments = ("submit", SMALL, "--address", head.address, "--python", "/no/python")
    code, output = ncp(storage, *arguments, keep_ray=True)
    assert code == 0, output
    (run,) = list_runs(opened)
    # As ncp submits, but for a node that is not there yet.
    attempt = claim_submission(opened, run, {})
    client = job_client(head.address)
    client.submit_job(
        entrypoint=shlex.join([sys.executable, "-m", "jobs.cli", "run", SMALL, "--storage", str(storage)]),
        submission_id=f"{run}-a{attempt}",
        entrypoint_num_cpus=50,
        runtime_env={"env_vars": {SUBMISSION_VARIABLE: str(attempt), "PYTHONPATH": str(ROOT)}},
        metadata={"run": run, "storage": opened.url},
    )
    wait_for(lambda: str(client.get_job_status(f"{run}-a{attempt}")) == "PENDING")
    code, output = ncp(storage, "stop", run, "--address", head.address, keep_ray=True)
    assert code == 0, output
    assert f"{run}-a{attempt}: " in output and "runs" not in output, output
    with RayWorker(tmp_path, head, ip="127.0.0.2", num_cpus=50):
        wait_for(lambda: str(client.get_job_status(f"{run}-a{attempt}")) in ("FAILED", "STOPPED"))
    assert step_store(storage, "stage1") is None


def test_a_job_that_cannot_start_shows_why(head: RayHead, storage: Path) -> None:
    code, output = ncp(
        storage,
        "submit",
        SMALL,
        "--address",
        head.address,
        "--python",
        "/no/python",
        "--follow",
        keep_ray=True,
    )
    assert code not in (0, 2), output
    assert "/no/python" in output.split("submitted to", 1)[1], output
