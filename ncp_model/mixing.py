"""Weighted sums of layer states, the one operation that all residual routes are made of, in few passes over memory.

A tower of L layers mixes L^2 / 2 states forward. Plain autograd would read and write as many gradient tensors again to
accumulate them. Here a state's gradient is formed once, when all its readers' gradients are known, as the transposed
mixture: the cost of a forward mixture, and one tensor. Under torch.compile the plain formulas are traced instead, and
the compiler fuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# What one reader of a state owes to its gradient: the mixing weight [B, n, 1] and the mixture's gradient [B, n, d].
_Contribution = tuple[Tensor, Tensor]


class State:
    """A state [B, n, d] that routes read, `value`, with the gradient contributions its readers leave for it.

    Not a container that sharding or tracing code looks into: readers get the tensor itself.
    """

    __slots__ = ("pending", "value")

    def __init__(self, value: Tensor) -> None:
        self.pending: list[_Contribution] = []
        plain = torch.compiler.is_compiling() or not (value.requires_grad and torch.is_grad_enabled())
        self.value = value if plain else _Collect.apply(value, self.pending)


class _Collect(torch.autograd.Function):
    """Identity, whose backward adds up what the readers left. Autograd runs it after all of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, pending: list[_Contribution]) -> Tensor:
        ctx.pending = pending
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        total, dtype = gradient, None if gradient is None else gradient.dtype
        owned = False
        for weight, mixed in ctx.pending:
            dtype = mixed.dtype
            if total is None:
                total = weight * mixed
            elif owned:
                total.addcmul_(weight, mixed)
            else:
                total = torch.addcmul(total, weight, mixed)
            owned = True
        ctx.pending.clear()
        return None if total is None else total.to(dtype), None


def mix(
    states: Sequence[State], weights: Tensor, *, newest: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    """offset + sum_i weights[..., i] * states[i], accumulated in at least float32.

    states [B, n, d] each, `newest` [B, n, d] standing behind them; weights [B, n, number of states]; offset [B, n, 1].
    """
    values = [state.value for state in states]
    values += [] if newest is None else [newest]
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _weighted_sum(values, weights, offset)
    pending = [state.pending for state in states]
    return _Mix.apply(weights, offset, pending, *values)


def _weighted_sum(values: Sequence[Tensor], weights: Tensor, offset: Tensor | None) -> Tensor:
    columns = weights.unsqueeze(-2).unbind(-1)
    total = columns[0] * values[0] if offset is None else torch.addcmul(offset, columns[0], values[0])
    for column, value in zip(columns[1:], values[1:], strict=True):
        total = torch.addcmul(total, column, value)
    return total.to(values[0].dtype)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, offset: Tensor | None, pending: list[list[_Contribution]], *values: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, *values)
        ctx.pending, ctx.has_offset = pending, offset is not None
        columns = weights.unsqueeze(-2).unbind(-1)
        total = columns[0] * values[0] if offset is None else torch.addcmul(offset, columns[0], values[0])
        for column, value in zip(columns[1:], values[1:], strict=True):
            total.addcmul_(column, value)
        return total.to(values[0].dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, *values = ctx.saved_tensors
        wide = gradient.to(weights.dtype)
        product = torch.empty_like(wide)
        ones = wide.new_ones(wide.shape[-1])
        grad_weights = torch.empty_like(weights)
        grad_values: list[Tensor | None] = [None] * len(values)
        for index, (column, value) in enumerate(zip(weights.unsqueeze(-2).unbind(-1), values, strict=True)):
            torch.mul(wide, value, out=product)
            grad_weights[..., index] = product @ ones
            if not ctx.needs_input_grad[3 + index]:
                continue
            if index < len(ctx.pending):
                ctx.pending[index].append((column, gradient))
            else:
                grad_values[index] = (column * wide).to(value.dtype)
        grad_offset = (wide @ ones).unsqueeze(-1) if ctx.has_offset else None
        return grad_weights, grad_offset, None, *grad_values


def norm_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """LayerNorm's mean and 1 / sqrt(variance + eps) over the last dimension of x, in at least float32."""
    if torch.compiler.is_compiling():
        variance, mean = torch.var_mean(
            x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1, correction=0
        )
        return mean, torch.rsqrt(variance + eps)
    return _Statistics.apply(x, eps)


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), None, None, eps)
        precision = torch.promote_types(x.dtype, torch.float32)
        mean, rstd = mean.to(precision), rstd.to(precision)
        ctx.save_for_backward(x, mean, rstd)
        return mean.squeeze(-1), rstd.squeeze(-1)

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_rstd: Tensor) -> tuple[Tensor, None]:
        x, mean, rstd = ctx.saved_tensors
        slope = -grad_rstd.unsqueeze(-1) * rstd**3 / x.shape[-1]
        constant = grad_mean.unsqueeze(-1) / x.shape[-1] - slope * mean
        return torch.addcmul(constant, slope, x).to(x.dtype), None
