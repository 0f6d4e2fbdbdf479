"""The training loop without Ray: exact resume, equal batches at any world size, transitions, retention, fencing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schedule import learning_rate
from curriculum.schema import ScheduleSpec
from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.metric_log import read_metrics
from jobs.training import train_loop
from jobs.training.train_job import Parent, TrainJob
from jobs.training.train_loop import NonFiniteLoss, train
from jobs.training.train_step import RankBatch, load_rank_batch
from ncp_model.losses import IGNORE
from pipeline.dag.lease import Superseded
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.staged import stage_prose
from tests.training import (
    SHARDS,
    assert_equal,
    hold,
    join_group,
    metric_values,
    milestone_tensors,
    run_ranks,
    small_job,
)

LOSS_TOLERANCE = 2e-4
"""Between world sizes: float32 sums in another order, over a dozen steps."""


@pytest.fixture(scope="module")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A storage with the prose source staged into shards."""
    storage = Storage(str(tmp_path_factory.mktemp("train-loop")))
    stage_prose(storage, SHARDS)
    return storage.url


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    join_group(0, 1, tmp_path_factory.mktemp("group") / "store")
    yield
    dist.destroy_process_group()


@pytest.fixture
def train_at(tmp_path: Path) -> Callable[[TrainJob, int], None]:
    """Train in that many fresh processes."""

    def run(job: TrainJob, world_size: int) -> None:
        store = tmp_path / f"group-{job.step_key.rpartition('/')[2]}-{job.attempt}"
        run_ranks(store, job, world_size)

    return run


def test_stopping_and_resuming_takes_the_very_same_steps(storage_url: str, one_rank: None) -> None:
    whole = hold(small_job(storage_url, "whole"))
    train(whole)
    for attempt, stop in enumerate((4, 7, 8), start=1):
        train(hold(small_job(storage_url, "parts", stop=stop, attempt=attempt)))
    parts = small_job(storage_url, "parts")
    assert_equal(milestone_tensors(whole, 8), milestone_tensors(parts, 8))
    assert metric_values(whole) == metric_values(parts)


def test_a_global_batch_without_one_label_changes_nothing_and_the_training_goes_on(
    storage_url: str, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blank_third(*arguments: Any) -> RankBatch:
        batch = load_rank_batch(*arguments)
        if arguments[2] != 2:
            return batch
        blank = [
            replace(micro, labels=torch.full_like(micro.labels, IGNORE)) for micro in batch.micro_batches
        ]
        counts = batch.counts.clone()
        counts[:3] = 0
        return RankBatch(micro_batches=blank, counts=counts)

    monkeypatch.setattr(train_loop, "load_rank_batch", blank_third)
    before = hold(small_job(storage_url, "before-blank", stop=2))
    train(before)
    job = hold(small_job(storage_url, "blank", stop=3))
    train(job)
    rows = metric_values(job)
    assert_equal(milestone_tensors(before, 2), milestone_tensors(job, 3))  # weights, moments and step counts
    assert [rows[2][name] for name in ("ntp", "ncp", "vq", "z", "grad_norm")] == [None] * 5
    assert (rows[2]["skipped"], rows[2]["skips"], rows[2]["tokens_in_stage"]) == (1, 0, 3 * 512)
    storage = Storage(storage_url)
    assert [read_alert(storage, key).kind for key in alert_keys(storage, job.step_key)] == ["no_labels"]
    train(hold(small_job(storage_url, "blank", stop=5, attempt=2)))
    rows = metric_values(job)
    assert len(rows) == 5 and rows[3]["ntp"] > 0 and rows[4]["batch_digest"] != rows[3]["batch_digest"]
    assert rows[3]["lr"] == learning_rate(job.stage, 3)


def test_a_loop_that_is_already_at_its_stop_does_nothing(storage_url: str, one_rank: None) -> None:
    job = hold(small_job(storage_url, "noop", stop=2))
    train(job)
    before = Storage(storage_url).keys(f"{job.step_key}/checkpoints")
    train(job)
    assert Storage(storage_url).keys(f"{job.step_key}/checkpoints") == before
    assert len(metric_values(job)) == 2


def test_metrics_are_exact_integers_and_the_configured_rates(storage_url: str, one_rank: None) -> None:
    job = hold(small_job(storage_url, "columns", stop=3, tokens_before=10_000_000_000_001))
    train(job)
    rows = metric_values(job)
    assert [row["tokens_in_stage"] for row in rows] == [512, 1024, 1536]
    assert [row["tokens_total"] for row in rows] == [10_000_000_000_001 + n for n in (512, 1024, 1536)]
    assert [row["lr"] for row in rows] == [learning_rate(job.stage, step) for step in range(3)]


def test_every_world_size_sees_the_same_batches_and_a_milestone_of_one_loads_at_another(
    storage_url: str, one_rank: None, train_at: Callable[[TrainJob, int], None]
) -> None:
    """3 ranks (which do not divide the batch of 8 windows), then 1, against 1 rank all the way."""
    alone = hold(small_job(storage_url, "alone"))
    train(alone)
    train_at(small_job(storage_url, "resized", stop=4), 3)
    train(hold(small_job(storage_url, "resized", attempt=2)))
    ours, theirs = metric_values(small_job(storage_url, "resized")), metric_values(alone)
    assert [row["batch_digest"] for row in ours] == [row["batch_digest"] for row in theirs]
    for column in ("ntp", "ncp", "vq", "grad_norm"):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine[column] == pytest.approx(other[column], rel=LOSS_TOLERANCE)
    ours_first, theirs_first = (
        milestone_tensors(small_job(storage_url, "resized"), 0),
        milestone_tensors(alone, 0),
    )
    assert_equal(ours_first, theirs_first)  # the same weights at any world size


def test_rows_hold_what_a_person_watches_and_logging_less_often_changes_no_bit(
    storage_url: str, one_rank: None
) -> None:
    every = hold(small_job(storage_url, "every", stop=6, peak_flops_per_worker=1e12))
    train(every)
    seldom = hold(small_job(storage_url, "seldom", stop=6, log_every_steps=4))
    train(seldom)
    rows = read_metrics(Storage(storage_url), every.step_key)
    few = read_metrics(Storage(storage_url), seldom.step_key)
    assert [row.step for row in few] == [4, 6]
    assert [row.values for row in few] == [row.values for row in rows if row.step in (4, 6)]
    assert_equal(milestone_tensors(every, 6), milestone_tensors(seldom, 6))
    values, timing = rows[-1].values, rows[-1].timing
    parts = [values[f"grad_norm.{group}"] for group in ("muon", "adamw", "codebooks")]
    assert values["grad_norm"] == pytest.approx(sum(part**2 for part in parts) ** 0.5, rel=1e-5)
    logits = [name for name in values if name.startswith("attention_logit.")]
    model = every.model
    assert len(logits) == model.encoder_layers + model.concept_layers + model.decoder_layers
    assert all(values[name] > 0 for name in logits)
    assert 0 < timing["mfu"] < 1 and timing["tokens_per_second"] > 0 and 0 <= timing["data_wait_share"] <= 1
    assert "mfu" not in few[-1].timing
    assert rows[3].timing["checkpoint_stall"] > 0  # the milestone after step 3


def test_a_loss_that_is_no_number_ends_the_training_and_is_in_no_milestone(
    storage_url: str, one_rank: None
) -> None:
    job = hold(
        small_job(
            storage_url,
            "diverged",
            stop=9,
            log_every_steps=100,
            stage=replace(
                small_job(storage_url, "diverged").stage, optimizer=OptimizerSpec(lr=1e30, weight_decay=0.0)
            ),
        )
    )
    with pytest.raises(NonFiniteLoss, match=r"stage1 step \d: loss .*; lower optimizer\.lr \(now 1e\+30\)"):
        train(job)
    store = StepStore(Storage(storage_url), job.step_key)
    for step in store.milestones():
        assert all(tensor.isfinite().all() for tensor in milestone_tensors(job, step).values()), step


def test_a_stage_starts_from_its_parent_with_a_rate_and_position_of_its_own(
    storage_url: str, one_rank: None
) -> None:
    parent = hold(small_job(storage_url, "parent", stop=4))
    train(parent)
    origin = Parent(stage="stage1", step_key=parent.step_key, step=4, load="weights+optimizer")
    stage = replace(
        parent.stage, seed=8, optimizer=OptimizerSpec(lr=1e-9), schedule=ScheduleSpec(kind="constant")
    )
    child = hold(
        small_job(
            storage_url,
            "child",
            stop=1,
            stage=stage,
            parent=origin,
            tokens_before=4 * 512,
            stage_name="stage2",
        )
    )
    train(child)
    row = metric_values(child)[0]
    assert (row["lr"], row["tokens_in_stage"], row["tokens_total"]) == (1e-9, 512, 5 * 512)
    before, after = milestone_tensors(parent, 4), milestone_tensors(child, 1)
    steps = [name for name in after if name.endswith("/step")]
    assert steps and all(
        after[name] == before[name] + 1 for name in steps
    )  # moments went on from the parent's
    for name in (name for name in after if name.startswith("model/")):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-7)

    fresh = replace(origin, load="weights")
    anew = hold(small_job(storage_url, "anew", stop=1, stage=stage, parent=fresh, tokens_before=4 * 512))
    train(anew)
    assert all(milestone_tensors(anew, 1)[name] == 1 for name in steps)


def test_a_superseded_attempt_stops_and_publishes_nothing_more(storage_url: str, one_rank: None) -> None:
    job = hold(small_job(storage_url, "fenced", stop=3))
    train(job)
    hold(replace(job, attempt=2))
    with pytest.raises(Superseded):
        train(replace(job, stop_step=6))
    assert StepStore(Storage(storage_url), job.step_key).milestones() == [0, 3]


def test_only_the_newest_the_first_and_what_runs_name_is_kept(storage_url: str, one_rank: None) -> None:
    storage = Storage(storage_url)
    job = hold(small_job(storage_url, "pruned", stop=14))
    named = {"name": "stage1", "kind": "stage", "key": job.step_key, "fingerprint": "f", "milestone": 6}
    storage.create_json("runs/other/run.json", {"recipe": {"recipe": "other"}, "steps": [named]})
    train(job)
    assert StepStore(storage, job.step_key).milestones() == [0, 6, 9, 12, 14]  # the newest three
    kept = {key.split("/")[3] for key in storage.keys(f"{job.step_key}/checkpoints")}
    assert kept == {f"{step:09d}-a000001" for step in (0, 6, 9, 12, 14)}


def test_a_crash_between_data_and_marker_leaves_the_milestone_before_as_the_newest(
    storage_url: str, one_rank: None
) -> None:
    job = hold(small_job(storage_url, "half", stop=3))
    train(job)
    storage = Storage(storage_url)
    storage.write_bytes(f"{job.step_key}/checkpoints/000000006-a000001/__0_0.distcp", b"half")
    train(hold(replace(job, attempt=2, stop_step=6)))
    marker = StepStore(storage, job.step_key).milestone(6)
    assert marker is not None and marker["data"].endswith("000000006-a000002")
    assert json.dumps(marker)  # plain values only
