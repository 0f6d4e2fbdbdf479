"""An elastic stage on a cluster of two nodes: one is lost, training goes on with what is left, and takes another that joins.

The batches are those of a run of fixed size, and so are the losses up to the rounding of sums in another order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.runs.log import read_run_log
from jobs.runs.metric_log import MetricRow, read_metrics
from jobs.runs.record import list_runs
from jobs.runs.status import run_status
from pipeline.storage import Storage
from tests.ncp_process import SMALL, copy_staged, milestones, ncp, step_store, wait_for
from tests.ray_cluster import RayHead, RayWorker

pytestmark = pytest.mark.matrix

STOP = 1000
LENGTH = (f"stage1.tokens={STOP * 512}", "stage1.on_shortage=repeat")
LOSS_TOLERANCE = 0.02
"""Relative, over a thousand steps in which rounding differences grow; the batches are equal to the bit."""


def _rows(storage: Path) -> list[MetricRow]:
    store = step_store(storage, "stage1")
    return [] if store is None else read_metrics(store.storage, store.key)


def _workers(storage: Path) -> int:
    """How many workers the newest attempt trains with."""
    store = step_store(storage, "stage1")
    progress = None if store is None else store.progress()
    return 0 if progress is None else progress.get("workers", 0)


def _log(storage: Path) -> str:
    opened = Storage(str(storage))
    return "".join(read_run_log(opened, list_runs(opened)[-1]))


def _done(storage: Path) -> bool:
    opened = Storage(str(storage))
    status = run_status(opened, list_runs(opened)[-1])
    assert status.state != "failed", status
    return status.state == "done"


def test_a_stage_shrinks_with_a_lost_node_and_grows_with_a_new_one(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, storage = tmp_path / "fixed" / "store", tmp_path / "elastic" / "store"
    for place in (fixed, storage):
        copy_staged(uninterrupted, place)
    code, output = ncp(fixed, "run", SMALL, *LENGTH, "runtime.checkpoint_every_steps=100")
    assert code == 0, output

    with (
        RayHead(tmp_path, num_cpus=0) as head,
        RayWorker(tmp_path, head, ip="127.0.0.2", num_cpus=1),
        RayWorker(tmp_path, head, ip="127.0.0.3", num_cpus=1) as lost,
    ):
        for name, value in head.environment.items():
            monkeypatch.setenv(name, value)
        elastic = (
            "runtime.num_workers=[1,2]",
            "runtime.cpus_per_worker=1",
            "runtime.elastic_check_seconds=1",
        )
        code, output = ncp(
            storage, "submit", SMALL, *LENGTH, *elastic, "--address", head.address, keep_ray=True
        )
        assert code == 0, output
        wait_for(lambda: 20 in milestones(storage, "stage1"))
        assert _workers(storage) == 2
        lost.kill()
        wait_for(lambda: _workers(storage) == 1)
        shrunk = max(milestones(storage, "stage1"))
        wait_for(lambda: max(milestones(storage, "stage1")) > shrunk)
        with RayWorker(tmp_path, head, ip="127.0.0.4", num_cpus=1):
            wait_for(lambda: _workers(storage) == 2)
            wait_for(lambda: _done(storage))

    assert "from 1 to 2 workers" in _log(storage)
    ours, theirs = _rows(storage), _rows(fixed)
    assert [row.step for row in ours] == list(range(1, STOP + 1))
    assert [row.values["batch_digest"] for row in ours] == [row.values["batch_digest"] for row in theirs]
    for column in ("ntp", "ncp"):
        assert [row.values[column] for row in ours] == pytest.approx(
            [row.values[column] for row in theirs], rel=LOSS_TOLERANCE
        )
