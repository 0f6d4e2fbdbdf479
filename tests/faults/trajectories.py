"""Whether two trajectories are the same to the bit: weights, optimizer state, deterministic metric columns."""

from __future__ import annotations

from pathlib import Path

import torch

from jobs.runs.metric_log import read_metrics
from tests.ncp_process import milestone_tensors, step_store

STOP = 40
"""The last step of tests/small.yaml."""


def assert_same_trajectory(storage: Path, uninterrupted: Path, stop: int, stage: str = "stage1") -> None:
    ours, theirs = (milestone_tensors(path, stage, stop) for path in (storage, uninterrupted))
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different, different
    rows = []
    for path in (storage, uninterrupted):
        store = step_store(path, stage)
        assert store is not None
        rows.append([(row.step, row.values) for row in read_metrics(store.storage, store.key)])
    assert [step for step, _ in rows[0]] == list(range(1, stop + 1))
    assert rows[0] == rows[1]
