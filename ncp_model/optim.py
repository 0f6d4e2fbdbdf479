"""Which parameter is trained by what: Muon for matrices, AdamW for the rest (docs/model.md 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    `optimizers` are ordinary torch.optim.Optimizer instances. `groups` are the trainable parameters by what treats them
    (`muon`, `adamw`, and the `codebooks` apart), for the norms of their gradients.
    """

    def __init__(
        self, optimizers: list[torch.optim.Optimizer], groups: Mapping[str, Sequence[nn.Parameter]]
    ) -> None:
        self.optimizers = optimizers
        self.groups = groups

    def step(self, lr: float, skip: Tensor | None = None) -> None:
        """Set the learning rate of every group and step.

        `skip`, a boolean scalar on the parameters' device, leaves weights, moments and step counts as they are when it is
        true; the host never learns which, so nothing waits for the device.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            # The protocol of torch.amp.GradScaler, which fused AdamW and our Muon both follow.
            optimizer.found_inf = None if skip is None else skip.float()  # type: ignore[attr-defined]
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
    return Optimizers(optimizers, _gradient_groups(split))


def _gradient_groups(split: ParameterSplit) -> dict[str, list[nn.Parameter]]:
    groups: dict[str, list[nn.Parameter]] = {"muon": [], "adamw": [], "codebooks": []}
    for name, parameters in (
        ("muon", split.muon),
        ("adamw", split.adamw_decay),
        ("adamw", split.adamw_no_decay),
    ):
        for key, parameter in parameters.items():
            groups["codebooks" if key == "predictor.codebook" else name].append(parameter)
    return {name: parameters for name, parameters in groups.items() if parameters}


def clip_grad_norm(model: nn.Module, max_norm: float) -> Tensor:
    """Scale gradients so that their total 2-norm is at most `max_norm`; returns the norm before, a plain float32 scalar.

    Shards are summed over their group, with one collective for the whole model.
    """
    return clip_grad_norms(model, max_norm, {})[0]


@torch.no_grad()
def clip_grad_norms(
    model: nn.Module, max_norm: float, groups: Mapping[str, Sequence[nn.Parameter]]
) -> Tensor:
    """As clip_grad_norm; returns float32 [1 + groups]: the norm of the whole, and of each group, before scaling."""
    owners = {id(parameter): number for number, name in enumerate(groups, 1) for parameter in groups[name]}
    trained = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    if not trained:
        return torch.zeros(1 + len(groups))
    gradients = [gradient for _, gradient in trained]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norms = torch._foreach_norm(local)  # pyright: ignore[reportPrivateImportUsage]
    members: list[list[Tensor]] = [list(norms), *([] for _ in groups)]
    for norm, (parameter, _) in zip(norms, trained, strict=True):
        if id(parameter) in owners:
            members[owners[id(parameter)]].append(norm)
    totals = torch.stack(
        [
            torch.linalg.vector_norm(torch.stack(part)).float() if part else norms[0].new_zeros(())
            for part in members
        ]
    )
    sharded = next((g for g in gradients if isinstance(g, DTensor)), None)
    if sharded is not None:
        dim = next(
            (i for i, placement in enumerate(sharded.placements) if isinstance(placement, Shard)), None
        )
        if dim is not None:
            totals = totals.square()
            dist.all_reduce(totals, group=sharded.device_mesh.get_group(dim))
            totals = totals.sqrt()
    scale = (max_norm / (totals[0] + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(local, scale)  # pyright: ignore[reportPrivateImportUsage]
    return totals
