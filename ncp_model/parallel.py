"""FSDP2: one sharding unit per layer with its routes, then the root (design: training contract)."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ncp_model.model import NCPModel


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
    spec = model.spec
    units = [*model.decoder]
    if spec.concept.enabled:
        units = [*model.encoder, *model.concept, model.predictor, *units]
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model
