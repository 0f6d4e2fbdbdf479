"""One trajectory over every layout: 1, 2 and 4 ranks, replicas of shards, recomputed and compiled layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.training.train_job import TrainJob
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.staged import stage_prose
from tests.training import SHARDS, metric_values, run_ranks, small_job

pytestmark = pytest.mark.matrix

LOSS_TOLERANCE = 2e-4
"""Relative, between layouts: float32 sums in another order, over eight steps."""
STOP = 8


@pytest.fixture(scope="module")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    storage = Storage(str(tmp_path_factory.mktemp("layouts")))
    stage_prose(storage, SHARDS)
    return storage.url


def _train(tmp_path: Path, job: TrainJob, ranks: int) -> TrainJob:
    run_ranks(tmp_path / f"group-{job.step_key.rpartition('/')[2]}-{job.attempt}", job, ranks)
    return job


@pytest.fixture(scope="module")
def alone(storage_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The trajectory of one rank."""
    return metric_values(
        _train(tmp_path_factory.mktemp("alone"), small_job(storage_url, "alone", stop=STOP), 1)
    )


def _assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for column in ("batch_digest", "lr", "tokens_total", "skipped"):
        assert [row[column] for row in ours] == [row[column] for row in theirs]
    for column in ("ntp", "ncp", "vq", "z", "grad_norm"):
        assert [row[column] for row in ours] == pytest.approx(
            [row[column] for row in theirs], rel=LOSS_TOLERANCE
        )


@pytest.mark.parametrize(
    ("name", "ranks", "changes"),
    [
        ("two", 2, {}),
        ("four", 4, {}),
        ("replicas", 4, {"shard_size": 2}),
        ("recomputed", 2, {"activation_checkpointing": True}),
        ("compiled", 2, {"compile": True, "compile_backend": "aot_eager"}),
        (
            "everything",
            4,
            {
                "shard_size": 2,
                "activation_checkpointing": True,
                "compile": True,
                "compile_backend": "aot_eager",
                "micro_batch_size": 1,
            },
        ),
    ],
)
def test_a_layout_changes_neither_batches_nor_more_than_rounding(
    name: str,
    ranks: int,
    changes: dict[str, Any],
    storage_url: str,
    alone: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    job = _train(tmp_path, small_job(storage_url, name, stop=STOP, **changes), ranks)
    rows = metric_values(job)
    _assert_same(rows, alone)
    logits = [column for column in alone[0] if column.startswith("attention_logit.")]
    assert logits and all(set(logits) <= row.keys() for row in rows)


@pytest.mark.parametrize(("ranks", "changes"), [(1, {}), (4, {}), (4, {"shard_size": 2})])
def test_a_milestone_of_two_ranks_is_continued_by_other_layouts(
    ranks: int, changes: dict[str, Any], storage_url: str, alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    name = f"from-two-to-{ranks}-{len(changes)}"
    _train(tmp_path, small_job(storage_url, name, stop=4), 2)
    job = _train(tmp_path, replace(small_job(storage_url, name, stop=STOP, attempt=2), **changes), ranks)
    _assert_same(metric_values(job), alone)
    marker = StepStore(Storage(storage_url), job.step_key).milestone(STOP)
    assert marker is not None and (marker["attempt"], marker["world_size"]) == (2, ranks)


def test_ranks_that_do_not_fill_whole_replicas_are_refused(storage_url: str, tmp_path: Path) -> None:
    job = small_job(storage_url, "uneven", shard_size=2)
    with pytest.raises(Exception, match=r"runtime\.shard_size: 2 does not divide the 3 workers"):
        _train(tmp_path, job, 3)
