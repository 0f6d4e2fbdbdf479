"""A sharded model is the unsharded model: weights, codebooks, losses, gradients, optimizer steps, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from curriculum.optimizer_spec import OptimizerSpec
from ncp_model import LossDenominators, ModelSpec, NCPModel, build_model, loss_counts
from ncp_model.init import copy_full_, initialize_codebooks, initialize_weights
from ncp_model.optim import Optimizers, build_optimizers, clip_grad_norm, split_parameters
from ncp_model.parallel import checkpoint_blocks, shard_model

SPEC = ModelSpec.preset("tiny")
OPTIMIZER = OptimizerSpec(lr=1e-2)
MUON_EVERYWHERE = OptimizerSpec(lr=1e-2, codebooks="muon")


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, SPEC.vocab_size, (4, 30), generator=torch.Generator().manual_seed(1))
    labels = torch.cat((ids[:, 1:], torch.full((4, 1), -100)), dim=1)
    labels[0, 3:17] = -100  # uneven masks: the ranks' own counts differ
    return ids, labels


def sharded_model(world_size: int, seed: int = 0) -> NCPModel:
    model = build_model(SPEC, device="meta")
    shard_model(model, init_device_mesh("cpu", (world_size,)), param_dtype=torch.float32)
    model.to_empty(device="cpu")
    initialize_weights(model, SPEC, seed)
    return model


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def full_parameters(model: NCPModel) -> dict[str, Tensor]:
    return {name: full(parameter) for name, parameter in model.named_parameters()}


def train_step(model: NCPModel, optimizers: Optimizers, rank: int, world_size: int) -> float:
    """One step of the global batch, this rank taking its share; FSDP averages gradients, hence the division."""
    ids, labels = batch()
    counts = loss_counts(labels, SPEC.concept.chunk_size)
    share = LossDenominators(**{k: v / world_size for k, v in dataclasses.asdict(counts).items()})
    mine = slice(rank * 4 // world_size, (rank + 1) * 4 // world_size)
    model(ids[mine], labels[mine], denominators=share).loss.backward()
    norm = clip_grad_norm(model, 1.0)
    optimizers.step(1e-2)
    optimizers.zero_grad()
    return norm.item()


def check_sharded(rank: int, world_size: int, folder: Path) -> None:
    expected = torch.load(folder / "expected.pt")
    model = sharded_model(world_size)
    assert_equal(full_parameters(model), expected["initial"])
    initialize_codebooks(model, batch()[0])
    assert_equal(full_parameters(model), expected["with_codebooks"])
    optimizers = build_optimizers(model, OPTIMIZER)
    norms = [train_step(model, optimizers, rank, world_size) for _ in range(3)]
    assert norms == pytest.approx(expected["norms"], rel=1e-4)
    for name, value in full_parameters(model).items():
        torch.testing.assert_close(value, expected["trained"][name], rtol=1e-3, atol=2e-3, msg=name)
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizers.optimizers),
    }
    save(state, checkpoint_id=folder / "checkpoint")
    trained = full_parameters(model)
    if rank == 0:
        torch.save(trained, folder / "trained.pt")
    train_step(model, optimizers, rank, world_size)
    continued = full_parameters(model)
    if rank == 0:
        torch.save(continued, folder / "continued.pt")


def check_other_settings(rank: int, world_size: int, folder: Path) -> None:
    """bfloat16 compute, recomputed blocks, and a mesh that replicates, each against one full-precision process."""
    expected = torch.load(folder / "gradients.pt")
    ids, labels = batch()
    for setting in ("bfloat16", "recomputed", "replicated"):
        model = build_model(SPEC, device="meta")
        shape = (world_size, 1) if setting == "replicated" else (world_size,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        shard_model(model, mesh, param_dtype=torch.bfloat16 if setting == "bfloat16" else torch.float32)
        if setting == "recomputed":
            checkpoint_blocks(model)
        model.to_empty(device="cpu")
        initialize_weights(model, SPEC, 0)
        loss = model(ids, labels).loss
        loss.backward()
        rounding = 2e-2 if setting == "bfloat16" else 1e-5
        assert abs(loss.item() / expected["loss"] - 1) < rounding
        for name, parameter in model.named_parameters():
            error = (full(parameter.grad) - expected[name]).norm()
            assert error <= 5 * rounding * expected[name].norm() + 1e-4, (setting, name, error)
        if setting != "bfloat16":
            norm = clip_grad_norm(model, 1e9).item()
            assert norm == pytest.approx(expected["norm"], rel=1e-4)
        build_optimizers(model, OPTIMIZER).step(1e-2)


def test_other_settings_compute_the_same(run_ranks: Callable[..., None], tmp_path: Path) -> None:
    model = build_model(SPEC, seed=0)
    ids, labels = batch()
    loss = model(ids, labels).loss
    loss.backward()
    expected = {name: full(parameter.grad) for name, parameter in model.named_parameters()}
    expected |= {"loss": loss.item(), "norm": clip_grad_norm(model, 1e9).item()}
    torch.save(expected, tmp_path / "gradients.pt")
    run_ranks(check_other_settings, 2, tmp_path)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name in actual:
        assert torch.equal(actual[name], expected[name]), name


def test_two_ranks_equal_one_and_their_checkpoint_loads_on_one(
    run_ranks: Callable[..., None], tmp_path: Path
) -> None:
    model = build_model(SPEC, seed=0)
    expected: dict[str, object] = {"initial": full_parameters(model)}
    initialize_codebooks(model, batch()[0])
    expected["with_codebooks"] = full_parameters(model)
    optimizers = build_optimizers(model, OPTIMIZER)
    expected["norms"] = [train_step(model, optimizers, 0, 1) for _ in range(3)]
    expected["trained"] = full_parameters(model)
    torch.save(expected, tmp_path / "expected.pt")

    run_ranks(check_sharded, 2, tmp_path)

    other = build_model(SPEC, seed=9)
    optimizers = build_optimizers(other, OPTIMIZER)
    state = {
        "model": get_model_state_dict(other),
        "optimizer": get_optimizer_state_dict(other, optimizers.optimizers),
    }
    load(state, checkpoint_id=tmp_path / "checkpoint")
    set_model_state_dict(other, state["model"])
    set_optimizer_state_dict(other, optimizers.optimizers, state["optimizer"])
    assert_equal(full_parameters(other), torch.load(tmp_path / "trained.pt"))
    train_step(other, optimizers, 0, 1)
    continued = torch.load(tmp_path / "continued.pt")
    for name, value in full_parameters(other).items():
        torch.testing.assert_close(value, continued[name], rtol=1e-3, atol=1e-3, msg=name)


def check_optimizer_step(rank: int, world_size: int, folder: Path) -> None:
    """The same full gradients at any world size must give the same bits."""
    model = sharded_model(world_size) if world_size > 1 else build_model(SPEC)
    optimizers = build_optimizers(model, MUON_EVERYWHERE)
    for step in range(3):
        for index, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(100 * step + index)
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.zeros_like(parameter)
            copy_full_(parameter.grad, gradient)
        optimizers.step(1e-2)
    result = full_parameters(model)
    if rank == 0:
        torch.save(result, folder / f"stepped{world_size}.pt")


def test_optimizer_step_equals_the_unsharded_one(run_ranks: Callable[..., None], tmp_path: Path) -> None:
    """Matrices of 1 to 3 rows among them: empty and uneven shards."""
    check_optimizer_step(0, 1, tmp_path)
    run_ranks(check_optimizer_step, 2, tmp_path)
    sharded, whole = torch.load(tmp_path / "stepped2.pt"), torch.load(tmp_path / "stepped1.pt")
    by_muon = split_parameters(build_model(SPEC, device="meta"), MUON_EVERYWHERE).muon
    assert_equal({name: sharded[name] for name in by_muon}, {name: whole[name] for name in by_muon})
    for name in whole:  # AdamW's vectorised kernel rounds the ends of odd-sized shards differently
        torch.testing.assert_close(sharded[name], whole[name], rtol=1e-6, atol=1e-7, msg=name)
