"""Checkpoints: exact round trip, damage noticed, and nothing in them that can run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from jobs.training.checkpoint import (
    IncompleteCheckpoint,
    UnsafeCheckpoint,
    load_tensors,
    model_tensors,
    optimizer_tensors,
    read_metadata,
    save_tensors,
)
from ncp_model import build_model
from ncp_model.optim import Optimizers, build_optimizers
from pipeline.storage import Storage

SPEC = ModelSpec.preset("tiny")


def _model(seed: int) -> tuple[torch.nn.Module, Optimizers]:
    model = build_model(SPEC, seed=seed)
    return model, build_optimizers(model, OptimizerSpec(lr=1e-3))


def _train_step(model: torch.nn.Module, optimizers: Optimizers) -> None:
    ids = torch.arange(32).reshape(1, 32)
    model(ids, labels=ids).loss.backward()
    optimizers.step(1e-3)
    optimizers.zero_grad()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_weights_and_moments_come_back_bit_for_bit_and_training_goes_on_equally(storage: Storage) -> None:
    model, optimizers = _model(1)
    _train_step(model, optimizers)
    files = save_tensors(storage, "c", {**model_tensors(model), **optimizer_tensors(model, optimizers)})
    twin, twin_optimizers = _model(2)
    load_tensors(storage, "c", {**model_tensors(twin), **optimizer_tensors(twin, twin_optimizers)}, files)
    for _ in range(2):
        _train_step(model, optimizers)
        _train_step(twin, twin_optimizers)
    for name, value in model_tensors(model).items():
        assert torch.equal(value, model_tensors(twin)[name]), name
    for name, value in optimizer_tensors(model, optimizers).items():
        assert torch.equal(value, optimizer_tensors(twin, twin_optimizers)[name]), name


@pytest.mark.parametrize("damage", ["truncated", "missing", "extra"])
def test_files_that_are_not_what_the_marker_says_are_refused_by_name(storage: Storage, damage: str) -> None:
    model, _ = _model(1)
    files = save_tensors(storage, "c", model_tensors(model))
    victim = storage.local_path("c/__0_0.distcp")
    assert victim is not None
    if damage == "truncated":
        os.truncate(victim, 100)
    elif damage == "missing":
        victim.unlink()
    else:
        victim.with_name("__9_0.distcp").write_bytes(b"stale")
    with pytest.raises(IncompleteCheckpoint, match=r"__\d_0\.distcp has .* its marker says"):
        load_tensors(storage, "c", model_tensors(model), files)


def test_a_tensor_that_the_checkpoint_does_not_hold_is_named(storage: Storage) -> None:
    model, optimizers = _model(1)
    files = save_tensors(storage, "c", model_tensors(model))
    with pytest.raises(IncompleteCheckpoint, match="holds no tensor 'optimizer/"):
        load_tensors(storage, "c", {**model_tensors(model), **optimizer_tensors(model, optimizers)}, files)


class _Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/ncp-exploit-ran",)


@pytest.mark.parametrize("payload", [_Exploit(), len, {"a": _Exploit()}])
def test_a_hostile_table_of_contents_is_refused_and_not_run(storage: Storage, payload: object) -> None:
    model, _ = _model(1)
    save_tensors(storage, "c", model_tensors(model))
    storage.write_bytes("c/.metadata", pickle.dumps(payload))
    files = {name.removeprefix("c/"): storage.size(name) for name in storage.keys("c")}
    with pytest.raises(UnsafeCheckpoint, match="tampered"):
        load_tensors(storage, "c", model_tensors(model), files)
    assert not Path("/tmp/ncp-exploit-ran").exists()


def test_a_table_of_contents_of_another_kind_is_refused() -> None:
    with pytest.raises(UnsafeCheckpoint, match="not a table of contents"):
        read_metadata(pickle.dumps({"just": "a dict"}), "id")
