"""`tests/two_stages.yaml` in a storage: its steps, and whether they are another's to the bit."""

from __future__ import annotations

import torch

from jobs.runs.metric_log import read_metrics
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.faults.trajectories import STOP
from tests.ncp_process import ROOT, read_checkpoint

TWO_STAGES = str(ROOT / "tests" / "two_stages.yaml")
STEPS = {"stage1": STOP, "stage2": 40}


def step(storage: Storage, name: str) -> StepStore | None:
    """The only step of that name, once it is there."""
    found = [key for key in storage.children("steps") if key[:-13] == name]
    assert len(found) <= 1, found
    return StepStore(storage, f"steps/{found[0]}") if found else None


def reached(storage: Storage, stage: str, milestone: int) -> bool:
    store = step(storage, stage)
    return store is not None and milestone in store.milestones()


def assert_same_stage(ours: Storage, theirs: Storage, stage: str) -> None:
    """Weights, optimizer state and metrics, to the bit."""
    tensors, rows = [], []
    for storage in (ours, theirs):
        store = step(storage, stage)
        assert store is not None
        marker = store.milestone(STEPS[stage])
        assert marker is not None
        tensors.append(read_checkpoint(storage, marker))
        rows.append([(row.step, row.values) for row in read_metrics(storage, store.key)])
    assert tensors[0].keys() == tensors[1].keys()
    assert [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])] == []
    assert rows[0] == rows[1]
