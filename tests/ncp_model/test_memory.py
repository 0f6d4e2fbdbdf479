"""Bytes of a step from the specification, against a real model's, and the published size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from curriculum.optimizer_spec import OptimizerSpec
from ncp_model import ModelSpec, build_model
from ncp_model.memory import checkpoint_bytes, step_memory
from ncp_model.optim import build_optimizers, split_parameters

OPTIMIZER = OptimizerSpec(lr=1e-3)


@pytest.mark.parametrize("optimizer", [OPTIMIZER, OptimizerSpec(lr=1e-3, matrices="adamw")])
def test_a_checkpoint_is_the_weights_and_the_optimizers_moments(optimizer: OptimizerSpec) -> None:
    spec = replace(ModelSpec.preset("tiny"), hidden_size=128, vocab_size=1024)
    model = build_model(spec)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers = build_optimizers(model, optimizer)
    optimizers.step(1e-3)
    held = sum(p.numel() for p in model.parameters())
    held += sum(
        value.numel() for o in optimizers.optimizers for state in o.state.values() for value in state.values()
    )
    assert checkpoint_bytes(spec, optimizer) == pytest.approx(4 * held, rel=0.01)


@pytest.mark.parametrize("preset", ["olmo3-7b-ncp", "olmo3-7b-vanilla-34", "release", "tiny"])
@pytest.mark.parametrize("matrices", ["muon", "adamw"])
@pytest.mark.parametrize("codebooks", ["muon", "adamw"])
def test_the_bytes_of_a_checkpoint_are_exact(preset: str, matrices: str, codebooks: str) -> None:
    spec, optimizer = (
        ModelSpec.preset(preset),
        OptimizerSpec(lr=1e-3, matrices=matrices, codebooks=codebooks),
    )
    split = split_parameters(build_model(spec, device="meta"), optimizer)
    moments = {"muon": 1, "adamw_decay": 2, "adamw_no_decay": 2}
    held = sum(
        (1 + count) * parameter.numel()
        for part, count in moments.items()
        for parameter in getattr(split, part).values()
    )
    assert checkpoint_bytes(spec, optimizer) == 4 * held
    if (preset, matrices, codebooks) == ("olmo3-7b-ncp", "muon", "adamw"):
        assert checkpoint_bytes(spec, optimizer) == 74_799_227_516, "as written once, without DCP's metadata"


def test_the_published_model_by_ranks_and_recomputation() -> None:
    spec = ModelSpec.preset("olmo3-7b-ncp")

    def need(shards: int, *, recomputed: bool = False, micro_batch: int = 1) -> int:
        return step_memory(
            spec,
            OPTIMIZER,
            sequence_length=8192,
            micro_batch_size=micro_batch,
            shards=shards,
            param_dtype="bfloat16",
            activation_checkpointing=recomputed,
        ).total

    assert need(64) < need(8) < need(1)
    assert need(8, recomputed=True) < 40 * 2**30 < need(8) < 80 * 2**30  # of an 80 GB GPU
    assert need(8, micro_batch=2) > 80 * 2**30
