"""Milestones beside the training: the state of that step, one at a time, and an error at the next look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curriculum.load import load_recipe
from curriculum.model_spec import ModelSpec
from curriculum.schema import PrecisionSpec, RuntimeSpec
from jobs.runs.alerts import alert_keys, read_alert
from jobs.training.milestone_writer import CheckpointFailed, MilestoneWriter
from jobs.training.milestones import load_milestone, training_state
from jobs.training.snapshot import Snapshot
from jobs.training.train_job import TrainJob
from ncp_model import build_model
from ncp_model.optim import Optimizers, build_optimizers
from pipeline.dag.holder import Holder
from pipeline.dag.lease import Superseded
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.training import one_rank

SPEC = replace(ModelSpec.preset("tiny"), hidden_size=32, intermediate_size=64)
KEY = "steps/stage1-0123456789ab"


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _job(storage: Storage, *, attempt: int = 1, asynchronous: bool = True) -> TrainJob:
    recipe = load_recipe("demo")
    record = {"run": "test", "holder": Holder.here().record(), "at": 0}
    storage.create_json(f"{KEY}/lease/{attempt:06d}.json", record)
    return TrainJob(
        storage_url=storage.url,
        step_key=KEY,
        attempt=attempt,
        run="test",
        stage_name="stage1",
        stage=recipe.stages["stage1"],
        model=SPEC,
        precision=PrecisionSpec(),
        shards={},
        parent=None,
        tokens_before=0,
        stop_step=100,
        runtime=RuntimeSpec(
            micro_batch_size=1, checkpoint_every_steps=10, async_checkpoints=asynchronous, keep_checkpoints=1
        ),
    )


def _writer(job: TrainJob) -> tuple[MilestoneWriter, torch.nn.Module, Optimizers]:
    model = build_model(SPEC, seed=1)
    optimizers = build_optimizers(model, job.stage.optimizer)
    return MilestoneWriter(Storage(job.storage_url), job, model, optimizers), model, optimizers


def _add_one(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_milestone_holds_the_state_of_its_step_though_training_went_on(
    storage: Storage, asynchronous: bool
) -> None:
    writer, model, _ = _writer(_job(storage, asynchronous=asynchronous))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    writer.save(10, {"skips": 2})
    _add_one(model)
    writer.save(20, {})  # waits for the one before
    _add_one(model)
    writer.wait()
    twin, twin_model, twin_optimizers = _writer(_job(storage))
    marker = load_milestone(storage, KEY, 20, twin_model, twin_optimizers)
    assert marker["step"] == 20 and not twin.writing
    for name, tensor in twin_model.state_dict().items():
        assert torch.equal(tensor, before[name] + 1), name
    assert StepStore(storage, KEY).milestones() == [10, 20]
    first = StepStore(storage, KEY).milestone(10)
    assert first is not None and first["stability"] == {"skips": 2}


def test_a_write_that_fails_is_raised_at_the_next_look_and_the_milestone_before_stays_the_newest(
    storage: Storage,
) -> None:
    writer, _, _ = _writer(_job(storage))
    writer.save(10, {})
    writer.wait()
    storage.write_bytes(f"{KEY}/checkpoints/000000020-a000001", b"a file where the folder should be")
    writer.save(20, {})
    writer.finish(60)
    with pytest.raises(CheckpointFailed, match=r"stage1 step 20: the milestone was not written \(.*Error"):
        writer.check()
    writer.check()  # told once
    assert StepStore(storage, KEY).newest_milestone(100) == 10


def test_what_cannot_be_deleted_is_said_once_and_ends_nothing(storage: Storage) -> None:
    """Left over from the attempt before: a file where a checkpoint's folder would be. What can go, goes."""
    job = _job(storage, attempt=2)
    storage.write_bytes(f"{KEY}/checkpoints/000000005-a000001", b"in the way")
    storage.write_bytes(f"{KEY}/checkpoints/000000007-a000001/__0_0.distcp", b"half of one")
    writer, _, _ = _writer(job)
    for step in (10, 20, 30):
        writer.save(step, {})
    writer.wait()
    assert StepStore(storage, KEY).milestones() == [10, 30]
    assert storage.children(f"{KEY}/checkpoints") == [
        "000000005-a000001",
        "000000010-a000002",
        "000000030-a000002",
    ]
    (alert,) = (read_alert(storage, key) for key in alert_keys(storage, KEY))
    assert alert.kind == "retention_failed" and "000000005-a000001" in alert.message
    assert alert.message.startswith("the milestone is complete, but old checkpoint")


def test_a_superseded_writer_says_so_and_publishes_nothing(storage: Storage) -> None:
    writer, _, _ = _writer(_job(storage))
    _job(storage, attempt=2)
    writer.save(10, {})
    with pytest.raises(Superseded):
        writer.wait()
    assert StepStore(storage, KEY).milestones() == []


def test_the_interval_marks_what_is_permanent(storage: Storage) -> None:
    job = _job(storage)
    job = replace(job, runtime=replace(job.runtime, permanent_checkpoint_every_steps=20))
    writer, _, _ = _writer(job)
    for step in (10, 20, 30, 40, 50):
        writer.save(step, {})
    writer.wait()
    assert StepStore(storage, KEY).milestones() == [10, 20, 40, 50]


def test_a_snapshot_reuses_its_buffers_and_costs_one_copy_of_the_state() -> None:
    model = build_model(SPEC, seed=1)
    state = training_state(model, build_optimizers(model, load_recipe("demo").stages["stage1"].optimizer))
    snapshot = Snapshot()
    first = snapshot.take(state)
    addresses = {name: tensor.data_ptr() for name, tensor in first.items()}
    _add_one(model)
    second = snapshot.take(state)
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == addresses
    assert all(torch.equal(second[name], state[name]) for name in state)
    assert snapshot.nbytes == sum(tensor.nbytes for tensor in state.values())
