"""Muon with the Newton-Schulz work shared out over ranks (docs/model.md 7).

`torch.optim.Muon` is right for plain two-dimensional tensors, and this class equals it there. It is not used because on
FSDP's row-sharded matrices its Newton-Schulz runs as sharded matrix products (15 collectives a matrix, and rounding that
depends on the world size), and because it refuses the stacked heads. Here momentum stays sharded, so it is checkpointed
like any parameter; each matrix has one owner that gathers its update, orthogonalises it and hands the rows back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Matrices below this many elements are orthogonalised together, those above one by one.
BATCHED_MATRIX_ELEMENTS = 1 << 16
# Elements exchanged at once, per rank; bounds the extra memory of a sharded step (about three buffers of this size), and
# should hold a large matrix for every rank.
EXCHANGE_ELEMENTS = 1 << 25


EPS = 1e-7


def orthogonalize(update: Tensor, steps: int = 5) -> Tensor:
    """Approximately U V^T of each matrix in `update` [..., m, n], by the quintic Newton-Schulz iteration.

    Its size does not matter: a matrix of a norm below EPS is first scaled up by a power of two, so gradients of any scale
    that is a normal number move the weights alike, and those of an ordinary scale as the published optimizer, to the bit.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update
    x = _scaled_up(x)
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)).reshape(-1, *x.shape[-2:])
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    x = x.reshape(update.mT.shape if tall else update.shape)
    return x.mT if tall else x


def _scaled_up(x: Tensor) -> Tensor:
    """`x` with each matrix of a norm below EPS brought to a largest element of [1, 2), exactly; zeros stay zeros."""
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    exponent = torch.frexp(largest.float()).exponent - 1
    tiny = (x.float().square().sum(dim=(-2, -1), keepdim=True).sqrt() < EPS) & (largest > 0)
    # In two steps: 2 ** 149 is no float32 by itself.
    half = torch.where(tiny, -exponent // 2, 0)
    rest = torch.where(tiny, -exponent - half, 0)
    return x * torch.exp2(half.float()).to(x.dtype) * torch.exp2(rest.float()).to(x.dtype)


def newton_schulz_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it is fast and accurate enough, float32 on CPUs."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def shard_rows(rows: int, world_size: int) -> list[int]:
    """Rows of each rank's shard of a matrix, as FSDP cuts dimension 0: equal pieces, the last ones short or empty."""
    piece = -(-rows // world_size)
    return [max(0, min(piece, rows - rank * piece)) for rank in range(world_size)]


def assign_owners(shapes: Sequence[tuple[int, int]], world_size: int) -> list[int]:
    """The rank that orthogonalises each matrix: dearest first, to the least loaded rank; the same on every rank."""
    load = [0] * world_size
    owners = [0] * len(shapes)
    cost = [m * n * min(m, n) for m, n in shapes]
    for index in sorted(range(len(shapes)), key=lambda i: (-cost[i], i)):
        owners[index] = min(range(world_size), key=lambda rank: (load[rank], rank))
        load[owners[index]] += cost[index]
    return owners


class Muon(torch.optim.Optimizer):
    """W <- (1 - lr * wd) W - lr * rms_scale * sqrt(max(m, n)) * O, with O the orthogonalised Nesterov momentum.

    So an update's root mean square is about lr * rms_scale ("reading B"). Parameters are matrices [m, n], or stacks
    [S, m, n] of independent ones; DTensors must be sharded on dimension 0 of a stack or of a matrix. Raises ValueError
    for any other parameter.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        rms_scale: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rms_scale": rms_scale}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim not in (2, 3):
                    raise ValueError(
                        f"Muon takes matrices or stacks of them, not shape {tuple(parameter.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient (the same ones on every rank).

        With a scalar tensor `self.found_inf` other than zero (as torch.amp.GradScaler sets it) nothing is changed.
        """
        loss = None if closure is None else closure()
        found_inf = getattr(self, "found_inf", None)
        skip = None if found_inf is None else found_inf != 0
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            updates = [self._momentum_update(p, group["momentum"], skip) for p in parameters]
            for parameter, direction in zip(parameters, orthogonalize_all(parameters, updates), strict=True):
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                step_size = group["lr"] * group["rms_scale"] * math.sqrt(max(parameter.shape[-2:]))
                decay = 1 - group["lr"] * group["weight_decay"]
                if skip is None:
                    local.mul_(decay).add_(direction.to(local.dtype), alpha=-step_size)
                else:
                    stepped = local.mul(decay).add_(direction.to(local.dtype), alpha=-step_size)
                    local.copy_(torch.where(skip, local, stepped))
        return loss

    def _momentum_update(self, parameter: Tensor, momentum: float, skip: Tensor | None) -> Tensor:
        """Advance the (sharded) momentum unless `skip`, and return this rank's part of the Nesterov update."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer, gradient = _local(state["momentum_buffer"]), _local(parameter.grad)
        if skip is None:
            buffer.lerp_(gradient, 1 - momentum)
        else:
            buffer.copy_(torch.where(skip, buffer, buffer.lerp(gradient, 1 - momentum)))
        return gradient.lerp(buffer, momentum)


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def orthogonalize_all(parameters: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Each rank's part of the orthogonalised updates: whole tensors if unsharded, else the rank's rows."""
    results: list[Tensor | None] = [None] * len(parameters)
    whole: list[int] = []
    sharded: dict[dist.ProcessGroup, list[int]] = defaultdict(list)
    for index, parameter in enumerate(parameters):
        group = _shard_group(parameter)
        if group is None or parameter.ndim == 3:  # a sharded stack holds whole matrices on every rank
            whole.append(index)
        else:
            sharded[group].append(index)
    for index, result in zip(whole, _orthogonalize_local([updates[i] for i in whole]), strict=True):
        results[index] = result
    for group, indices in sharded.items():
        for part in _exchange_rounds(parameters, indices, group.size()):
            shapes = [(parameters[i].shape[0], parameters[i].shape[1]) for i in part]
            for index, rows in zip(part, _exchange([updates[i] for i in part], shapes, group), strict=True):
                results[index] = rows
    return [result for result in results if result is not None]


def _shard_group(parameter: Tensor) -> dist.ProcessGroup | None:
    """The group over which a parameter's dimension 0 is cut, None if it is whole on this rank."""
    if not isinstance(parameter, DTensor):
        return None
    cut = [dim for dim, placement in enumerate(parameter.placements) if isinstance(placement, Shard)]
    if len(cut) > 1 or any(parameter.placements[dim] != Shard(0) for dim in cut):
        raise ValueError(f"Muon needs parameters sharded on dimension 0 only, not {parameter.placements}")
    if not cut or parameter.device_mesh.size(cut[0]) == 1:
        return None
    return parameter.device_mesh.get_group(cut[0])


def _orthogonalize_local(updates: Sequence[Tensor]) -> list[Tensor]:
    """Orthogonalise whole matrices, small ones of equal shape together."""
    results: list[Tensor] = [torch.empty(0)] * len(updates)
    batches: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, update in enumerate(updates):
        if update.ndim == 2 and update.numel() < BATCHED_MATRIX_ELEMENTS:
            batches[tuple(update.shape)].append(index)
        else:
            results[index] = (
                orthogonalize(update.to(newton_schulz_dtype(update.device))) if update.numel() else update
            )
    for indices in batches.values():
        stack = torch.stack([updates[i] for i in indices])
        for index, result in zip(
            indices, orthogonalize(stack.to(newton_schulz_dtype(stack.device))), strict=True
        ):
            results[index] = result
    return results


def _exchange_rounds(
    parameters: Sequence[Tensor], indices: Sequence[int], world_size: int
) -> list[list[int]]:
    """Cut `indices` into rounds of at most EXCHANGE_ELEMENTS per rank (or one matrix)."""
    rounds: list[list[int]] = [[]]
    size = 0
    for index in indices:
        elements = parameters[index].numel()
        if rounds[-1] and size + elements > EXCHANGE_ELEMENTS * world_size:
            rounds.append([])
            size = 0
        rounds[-1].append(index)
        size += elements
    return rounds


def _exchange(
    updates: Sequence[Tensor], shapes: Sequence[tuple[int, int]], group: dist.ProcessGroup
) -> list[Tensor]:
    """Gather each matrix's rows at its owner, orthogonalise there, and bring every rank's rows back to it."""
    world_size, rank = group.size(), group.rank()
    owners = assign_owners(shapes, world_size)
    mine = [i for i, owner in enumerate(owners) if owner == rank]
    by_owner = [[i for i, owner in enumerate(owners) if owner == peer] for peer in range(world_size)]
    rows = [shard_rows(m, world_size) for m, _ in shapes]
    dtype = newton_schulz_dtype(updates[0].device)
    outgoing = [sum(rows[i][rank] * shapes[i][1] for i in by_owner[peer]) for peer in range(world_size)]
    incoming = [sum(rows[i][peer] * shapes[i][1] for i in mine) for peer in range(world_size)]

    sent = torch.cat([updates[i].reshape(-1) for owned in by_owner for i in owned]).to(dtype)
    received = sent.new_empty(sum(incoming))
    dist.all_to_all_single(received, sent, incoming, outgoing, group=group)
    count = len(sent)
    del sent
    sizes = [rows[i][peer] * shapes[i][1] for peer in range(world_size) for i in mine]
    pieces = received.split(sizes)
    matrices = [torch.cat(pieces[k :: len(mine)]).view(shapes[i]) for k, i in enumerate(mine)]

    del pieces, received
    orthogonal = _orthogonalize_local(matrices)
    del matrices
    results = [o.split(rows[i]) for i, o in zip(mine, orthogonal, strict=True)]
    back = torch.cat(
        [results[k][peer].reshape(-1) for peer in range(world_size) for k in range(len(mine))]
        or [updates[0].new_empty(0, dtype=dtype)]
    )
    del orthogonal, results
    returned = back.new_empty(count)
    dist.all_to_all_single(returned, back, outgoing, incoming, group=group)
    order = [i for owned in by_owner for i in owned]
    parts = returned.split([rows[i][rank] * shapes[i][1] for i in order])
    own_rows = dict(zip(order, parts, strict=True))
    return [own_rows[i].view(rows[i][rank], shapes[i][1]) for i in range(len(updates))]
