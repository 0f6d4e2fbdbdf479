"""What makes a model fit and run fast, without changing what it computes: sharding, recomputation, compilation."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ncp_model.model import NCPModel
from ncp_model.towers import TowerLayer


def shard_model(
    model: NCPModel,
    mesh: DeviceMesh,
    *,
    param_dtype: torch.dtype = torch.bfloat16,
    reduce_dtype: torch.dtype = torch.float32,
) -> NCPModel:
    """Shard `model` in place over `mesh` (1-D, or 2-D replicate x shard for HSDP) and return it.

    A unit is a layer with its IRC, CRC and final-concept route, in execution order; heads and codebooks are one unit,
    used only inside its forward; embeddings, shared norms and the LM head stay with the root. Master weights keep the
    dtype the model was built in. Inputs are not cast: routes carry float32 statistics, and states already are
    `param_dtype`.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=param_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False
    )
    units: list[nn.Module] = [*tower_layers(model)]
    if model.spec.concept.enabled:
        units.append(model.predictor)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def tower_layers(model: NCPModel) -> list[TowerLayer]:
    """Every layer of every tower, in the order of execution."""
    towers = [model.encoder, model.concept, model.decoder] if model.spec.concept.enabled else [model.decoder]
    return [layer for tower in towers for layer in tower if isinstance(layer, TowerLayer)]


def checkpoint_blocks(model: NCPModel) -> NCPModel:
    """Recompute each transformer block in the backward pass instead of keeping its activations.

    Blocks alone, not layers: the raw outputs that residual routes read stay in memory, and routes are not run twice.
    """
    for layer in tower_layers(model):
        layer.recompute_block = True
    return model


def compile_layers(model: NCPModel, backend: str = "inductor") -> NCPModel:
    """torch.compile each layer in place (parameter names stay). Layers of a tower differ in how many states they read,
    so each is a graph of its own; compile after sharding."""
    for layer in tower_layers(model):
        layer.compile(backend=backend)
    return model
