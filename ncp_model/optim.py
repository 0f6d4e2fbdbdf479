"""Which parameter is trained by what: Muon for matrices, AdamW for the rest (NCP spec 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from curriculum.optimizer_spec import OptimizerSpec
from ncp_model.init import parameter_name
from ncp_model.muon import Muon


@dataclass(frozen=True, kw_only=True)
class ParameterSplit:
    """Trainable parameters by name and by treatment. Muon's are decayed too."""

    muon: dict[str, nn.Parameter]
    adamw_decay: dict[str, nn.Parameter]
    adamw_no_decay: dict[str, nn.Parameter]


def split_parameters(model: nn.Module, spec: OptimizerSpec) -> ParameterSplit:
    """Sort the trainable parameters of a model, sharded or not.

    Muon: attention, MLP, head and route matrices (and codebooks if so configured). AdamW with decay: LM head and
    codebooks. AdamW without: the embedding, and every vector or scalar - norms, biases (the heads' stacked ones too),
    route diagonals, gates, and the IRC's static weights, whose 1 is the residual stream.
    """
    split = ParameterSplit(muon={}, adamw_decay={}, adamw_no_decay={})
    for wrapped_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name = parameter_name(wrapped_name)
        if parameter.ndim < 2 or name in ("embed_tokens.weight", "predictor.head_bias"):
            split.adamw_no_decay[name] = parameter
        elif name == "predictor.codebook":
            (split.muon if spec.codebooks == "muon" else split.adamw_decay)[name] = parameter
        elif name == "lm_head.weight" or spec.matrices == "adamw":
            split.adamw_decay[name] = parameter
        else:
            split.muon[name] = parameter
    return split


class Optimizers:
    """The optimizers of one model, stepped together.

    `optimizers` are ordinary torch.optim.Optimizer instances, to be checkpointed together by
    torch.distributed.checkpoint.state_dict.
    """

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def step(self, lr: float) -> None:
        """Set the learning rate of every group and step."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: nn.Module, spec: OptimizerSpec) -> Optimizers:
    """Muon and AdamW over the trainable parameters of `model`; call it after sharding.

    Raises ValueError if nothing is trainable.
    """
    if isinstance(model, FSDPModule):
        model.reshard()  # after a forward without a backward, `parameters()` would be the gathered ones
    split = split_parameters(model, spec)
    optimizers: list[torch.optim.Optimizer] = []
    if split.muon:
        optimizers.append(
            Muon(
                split.muon.values(),
                lr=spec.lr,
                momentum=spec.muon_momentum,
                weight_decay=spec.weight_decay,
                rms_scale=spec.muon_rms_scale,
            )
        )
    groups = [
        {"params": list(parameters.values()), "weight_decay": decay}
        for parameters, decay in ((split.adamw_decay, spec.weight_decay), (split.adamw_no_decay, 0.0))
        if parameters
    ]
    if groups:
        # Fused: one kernel call a group; the unfused loop's per-parameter DTensor dispatch costs more than the step.
        optimizers.append(torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True))
    if not optimizers:
        raise ValueError("no parameter of the model requires a gradient: nothing to optimise")
    return Optimizers(optimizers)


@torch.no_grad()
def clip_grad_norm(model: nn.Module, max_norm: float) -> Tensor:
    """Scale gradients so that their total 2-norm is at most `max_norm`; returns the norm before, a plain float32 scalar.

    Shards are summed over their group, with one collective for the whole model.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    total = torch.nn.utils.get_total_norm(local).float()
    sharded = next((g for g in gradients if isinstance(g, DTensor)), None)
    if sharded is not None:
        dim = next(
            (i for i, placement in enumerate(sharded.placements) if isinstance(placement, Shard)), None
        )
        if dim is not None:
            total = total.square()
            dist.all_reduce(total, group=sharded.device_mesh.get_group(dim))
            total = total.sqrt()
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(local, scale)  # pyright: ignore[reportPrivateImportUsage]
    return total
