"""Checkpoints: exact round trip, damage noticed, and nothing in them that can run code."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from jobs.runs.checkpoint_files import DamagedMilestone, share_of
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
    saved = save_tensors(storage, "c", {**model_tensors(model), **optimizer_tensors(model, optimizers)})
    twin, twin_optimizers = _model(2)
    state = {**model_tensors(twin), **optimizer_tensors(twin, twin_optimizers)}
    load_tensors(storage, "c", state, saved.sizes, saved.sha256)
    for _ in range(2):
        _train_step(model, optimizers)
        _train_step(twin, twin_optimizers)
    for name, value in model_tensors(model).items():
        assert torch.equal(value, model_tensors(twin)[name]), name
    for name, value in optimizer_tensors(model, optimizers).items():
        assert torch.equal(value, optimizer_tensors(twin, twin_optimizers)[name]), name


def test_digests_are_those_of_the_files_and_cover_all_of_them(storage: Storage) -> None:
    model, _ = _model(1)
    saved = save_tensors(storage, "c", model_tensors(model))
    there = {name.removeprefix("c/"): storage.read_bytes(name) for name in storage.keys("c")}
    assert saved.sizes == {name: len(data) for name, data in there.items()}
    assert saved.sha256 == {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped"])
def test_files_that_are_not_what_the_marker_says_are_refused_by_name(
    storage: Storage, damage: str, name: str
) -> None:
    model, _ = _model(1)
    saved = save_tensors(storage, "c", model_tensors(model))
    victim = storage.local_path(f"c/{name}")
    assert victim is not None
    data = bytearray(victim.read_bytes())
    if damage == "truncated":
        victim.write_bytes(data[:100])
    elif damage == "missing":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 4
        victim.write_bytes(data)
    twin, _ = _model(2)
    before = {key: value.clone() for key, value in model_tensors(twin).items()}
    with pytest.raises(DamagedMilestone, match=re.escape(name)):
        load_tensors(storage, "c", model_tensors(twin), saved.sizes, saved.sha256)
    assert all(torch.equal(value, before[key]) for key, value in model_tensors(twin).items())


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), which=st.integers(0, 1))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_bit_is_ever_loaded(storage: Storage, place: float, bit: int, which: int) -> None:
    model = torch.nn.Linear(8, 8)
    saved = save_tensors(storage, "c", {"model/w": model.weight.detach()})
    victim = storage.local_path(f"c/{sorted(saved.sizes)[which]}")
    assert victim is not None
    data = bytearray(victim.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    victim.write_bytes(data)
    with pytest.raises(DamagedMilestone, match="sha256"):
        load_tensors(storage, "c", {"model/w": torch.zeros(8, 8)}, saved.sizes, saved.sha256)
    storage.delete_tree("c")


def test_a_milestone_without_digests_still_loads_and_damage_to_its_table_is_named(storage: Storage) -> None:
    model, _ = _model(1)
    saved = save_tensors(storage, "c", model_tensors(model))
    twin, _ = _model(2)
    load_tensors(storage, "c", model_tensors(twin), saved.sizes)
    assert all(torch.equal(value, model_tensors(twin)[key]) for key, value in model_tensors(model).items())
    storage.write_bytes("c/.metadata", b"\0" * saved.sizes[".metadata"])
    with pytest.raises(DamagedMilestone, match="no table of contents"):
        load_tensors(storage, "c", model_tensors(twin), saved.sizes)


def test_each_file_is_verified_by_exactly_one_rank() -> None:
    files = {f"__{rank}_0.distcp": 100 + rank for rank in range(7)} | {".metadata": 3}
    for ranks in (1, 2, 3, 9):
        shares = [share_of(files, rank, ranks) for rank in range(ranks)]
        assert sorted(name for share in shares for name in share) == sorted(files)
        loads = [sum(files[name] for name in share) for share in shares]
        assert max(loads) - min(loads) <= 107


def test_a_tensor_that_the_checkpoint_does_not_hold_is_named(storage: Storage) -> None:
    model, optimizers = _model(1)
    files = save_tensors(storage, "c", model_tensors(model)).sizes
    with pytest.raises(IncompleteCheckpoint, match="holds no tensor 'optimizer/"):
        load_tensors(storage, "c", {**model_tensors(model), **optimizer_tensors(model, optimizers)}, files)


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_tensor_that_has_no_place_is_refused_by_name(storage: Storage, part: str) -> None:
    model, optimizers = _model(1)
    state = {**model_tensors(model), **optimizer_tensors(model, optimizers)}
    files = save_tensors(storage, "c", {**state, f"{part}/adapter.weight": torch.ones(2)}).sizes
    with pytest.raises(IncompleteCheckpoint, match=f"1 tensors .* '{part}/adapter.weight' first"):
        load_tensors(storage, "c", state, files)


def test_weights_alone_may_leave_the_optimizer_state(storage: Storage) -> None:
    model, optimizers = _model(1)
    state = {**model_tensors(model), **optimizer_tensors(model, optimizers)}
    saved = save_tensors(storage, "c", state)
    load_tensors(storage, "c", model_tensors(model), saved.sizes, saved.sha256)


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
