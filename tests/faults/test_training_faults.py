"""Faults of a training run under Ray: each real, each with what a person then sees, and the bits of an undisturbed run."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.runs.alerts import alert_keys, read_alert
from pipeline.dag.store import StepStore
from tests.faults.crash_points import crash_at
from tests.faults.trajectories import STOP, assert_same_trajectory
from tests.ncp_process import (
    ROOT,
    SMALL,
    NcpProcess,
    copy_staged,
    milestones,
    ncp,
    step_store,
    training_workers,
)

pytestmark = pytest.mark.matrix


@pytest.fixture
def storage(uninterrupted: Path, tmp_path: Path) -> Path:
    copy_staged(uninterrupted, tmp_path / "store")
    return tmp_path / "store"


def _store(storage: Path) -> StepStore:
    store = step_store(storage, "stage1")
    assert store is not None
    return store


def _alerts(storage: Path) -> list[str]:
    store = _store(storage)
    return [read_alert(store.storage, key).kind for key in alert_keys(store.storage, store.key)]


def test_a_preempted_worker_costs_one_milestone_and_no_retry(storage: Path, uninterrupted: Path) -> None:
    run = NcpProcess(storage, "run", SMALL, "runtime.retries=0")
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    os.kill(training_workers(run.process.pid)[1], signal.SIGTERM)
    code, output = run.finish()
    assert code == 0, output
    assert "Preempted: worker of rank" in output
    resumed = _store(storage).progress()
    assert resumed is not None and resumed["resumed_from"] >= 20
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_a_worker_that_hangs_is_dumped_and_replaced(storage: Path, uninterrupted: Path) -> None:
    run = NcpProcess(storage, "run", SMALL, "runtime.hang_timeout_seconds=20")
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    stopped = training_workers(run.process.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    code, output = run.finish()
    assert code == 0, output
    assert "stage1: retrying" in output and "Preempted" not in output, output
    store = _store(storage)
    (stacks,) = store.storage.keys(f"{store.key}/stacks")
    assert b"train_loop.py" in store.storage.read_bytes(stacks)
    assert "stall" in _alerts(storage)
    assert_same_trajectory(storage, uninterrupted, STOP)
    assert not Path(f"/proc/{stopped}").exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_killed_around_a_milestone_leaves_no_half_one(
    when: str, storage: Path, uninterrupted: Path
) -> None:
    """Before its marker the data lies there whole and is no milestone; after it, it is one."""
    code, output, key = crash_at(storage, f"worker:{when}:stage1-.*/milestones/000000020.json", "run", SMALL)
    assert key and code == 0, output
    assert "stage1: retrying" in output
    assert_same_trajectory(storage, uninterrupted, STOP)
    store = _store(storage)
    named = {str(marker["data"]) for step in store.milestones() if (marker := store.milestone(step))}
    assert {key.rpartition("/")[0] for key in store.storage.keys(f"{store.key}/checkpoints")} == named


def test_storage_that_refuses_a_checkpoint_costs_an_attempt_and_no_bit(
    storage: Path, uninterrupted: Path
) -> None:
    """The folder of the next checkpoint is a file: DCP's write fails with a real error of the file system."""
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 10 in milestones(storage, "stage1"))
    key = _store(storage).key
    for step in (30, 40):
        (storage / key / "checkpoints" / f"{step:09d}-a000001").write_bytes(b"in the way")
    code, output = run.finish()
    assert code == 0, output
    assert "the milestone was not written" in output and "the one before it stays the newest" in output
    assert output.count("stage1: retrying") == 1, output
    assert "Preempted" not in output, "the SIGTERM by which Ray ends the other worker is no preemption"
    assert "checkpoint_failed" in _alerts(storage)
    assert "retention_failed" in _alerts(storage), "the file that is still in the way"
    assert_same_trajectory(storage, uninterrupted, STOP)


FULL_DISK = """
mount -t tmpfs -o size=$SIZE tmpfs $DISK
cp -r $STAGED $DISK/store
timeout 900 $NCP run $RECIPE runtime.retries=1 > $OUT/first.log 2>&1 || echo $? > $OUT/first.code
rm $DISK/store/ballast
timeout 900 $NCP run $RECIPE > $OUT/second.log 2>&1 || echo $? > $OUT/second.code
cp -r $DISK/store $OUT/store
"""


def test_a_disk_that_is_full_ends_the_run_and_a_freed_one_goes_on_to_the_same_bits(
    storage: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """A file system of its own, in a namespace that ends with its processes, with room for the first two milestones and no third."""
    checkpoints = uninterrupted / _store(uninterrupted).key / "checkpoints"
    milestone = _bytes(checkpoints) // len(milestones(uninterrupted, "stage1"))
    (storage / "ballast").write_bytes(bytes(30 * milestone))
    out, disk = tmp_path / "out", tmp_path / "disk"
    for folder in (out, disk):
        folder.mkdir()
    environment = {
        "SIZE": str(_bytes(storage) + 5 * milestone // 2),
        "DISK": str(disk),
        "NCP_STORAGE": str(disk / "store"),
        "STAGED": str(storage),
        "OUT": str(out),
        "NCP": f"{sys.executable} -m jobs.cli",
        "RECIPE": SMALL,
    }
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", FULL_DISK],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
    )
    first = (out / "first.log").read_text()
    assert "Traceback" not in first, first
    assert "No space left on device" in first and (out / "first.code").read_text().strip() == "1", first
    assert not (out / "second.code").exists(), (out / "second.log").read_text()
    assert_same_trajectory(out / "store", uninterrupted, STOP)


def _bytes(folder: Path) -> int:
    """As a file system counts them, in blocks."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def test_a_file_that_may_grow_no_further_costs_an_attempt_and_no_bit(
    storage: Path, uninterrupted: Path
) -> None:
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 10 in milestones(storage, "stage1"))
    for worker in training_workers(run.process.pid):
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (65_536, 65_536))
    code, output = run.finish()  # the next attempt's workers are new processes, without the limit
    assert code == 0, output
    assert "File too large" in output
    assert_same_trajectory(storage, uninterrupted, STOP)


def test_nan_is_the_users_to_mend_and_is_not_tried_again(storage: Path) -> None:
    code, output = ncp(storage, "run", SMALL, "stage1.optimizer.lr=1e30")
    assert code == 2, output
    assert "lower optimizer.lr" in output and "retrying" not in output
    assert "non_finite_loss" in _alerts(storage)
    assert milestones(storage, "stage1")[0] == 0


class _Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ncp-exploit-ran",)


def test_a_hostile_checkpoint_is_refused_and_not_run(storage: Path) -> None:
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    run.kill(signal.SIGKILL)
    store = _store(storage)
    newest = store.milestones()[-1]
    marker = store.milestone(newest)
    assert marker is not None
    payload = pickle.dumps(_Exploit())
    store.storage.write_bytes(f"{marker['data']}/.metadata", payload)
    marker["files"][".metadata"] = len(payload)
    store.storage.write_json(f"{store.key}/milestones/{newest:09d}.json", marker)
    code, output = ncp(storage, "run", SMALL)
    assert code == 2 and "tampered" in output and "retrying" not in output, output
    assert not list(storage.parent.rglob("ncp-exploit-ran"))
