"""OLMo 3's transformer block: reordered norms, QK-norm, half-split RoPE, SwiGLU, no biases (docs/model.md 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curriculum.model_spec import ModelSpec


class LayerCache(Protocol):
    """Keys and values of one layer's earlier positions, during generation."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, H, n, head_dim] new rows; return the [B, H, positions, head_dim] rows to attend to."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttentionPattern:
    """What one tower's layers share: rotations of its positions and who may see whom.

    `cos` and `sin` are float32 [1 or B, 1, n, head_dim / 2]. A mask is additive (see
    additive_mask), broadcastable to [B, H, n, keys]; None means plain causal.
    """

    cos: Tensor
    sin: Tensor
    local_mask: Tensor | None
    full_mask: Tensor | None


def rotary_angles(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [..., 1, n, head_dim / 2], of integer `positions` [..., n]."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.unsqueeze(-1).float() * (1.0 / theta**exponents)
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, H, n, head_dim], pairing element i with i + head_dim / 2, in at least float32."""
    if torch.compiler.is_compiling() or x.dtype != cos.dtype:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return _Rotate.apply(x, cos, sin)


class _Rotate(torch.autograd.Function):
    """The same in half the passes over memory; the gradient of a rotation is the opposite rotation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradient, cos, -sin), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    result = torch.empty_like(x)
    (first, second), (out_first, out_second) = x.chunk(2, dim=-1), result.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return result


def visibility(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Boolean [..., n, m]: key position <= query position, and fewer than `window` positions back."""
    distance = queries.unsqueeze(-1) - keys.unsqueeze(-2)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def additive_mask(seen: Tensor, like: Tensor) -> Tensor:
    """0 where `seen`, else -inf, in `like`'s dtype: what attention kernels would make of a boolean mask in each layer."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, statistics in at least float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype == self.weight.dtype and not torch.compiler.is_compiling():
            return _RMSNormCPU.apply(x, self.weight, self.eps)
        return F.rms_norm(x, (self.size,), self.weight, self.eps)


class _RMSNormCPU(torch.autograd.Function):
    """The CPU has no fused kernel and takes three times as long through autograd's own formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        precision = torch.promote_types(x.dtype, torch.float32)
        wide = x.to(precision)
        scale = torch.linalg.vecdot(wide, wide).unsqueeze(-1).div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        wide, wide_weight = gradient.to(scale.dtype), weight.to(scale.dtype)
        product = wide * x
        along = (product @ wide_weight).unsqueeze(-1) * scale**3
        grad_weight = scale.flatten() @ product.flatten(0, -2)
        grad_x = (wide * wide_weight).mul_(scale).addcmul_(x, along, value=-1 / x.shape[-1])
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


class Attention(nn.Module):
    """Multi-head causal attention over the un-normed stream, with QK-norm before RoPE.

    `full` layers see every earlier position, the others the last `window`.
    """

    def __init__(self, spec: ModelSpec, *, full: bool) -> None:
        super().__init__()
        size = spec.hidden_size
        self.head_dim, self.full, self.norm_per_head = spec.head_dim, full, spec.qk_norm == "head"
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)
        norm_size = spec.head_dim if self.norm_per_head else size
        self.q_norm = RMSNorm(norm_size, spec.norm_eps)
        self.k_norm = RMSNorm(norm_size, spec.norm_eps)

    def forward(self, x: Tensor, pattern: AttentionPattern, cache: LayerCache | None = None) -> Tensor:
        """x [B, n, d] -> [B, n, d]."""
        queries = apply_rotary(self._heads(self.q_proj(x), self.q_norm), pattern.cos, pattern.sin)
        keys = apply_rotary(self._heads(self.k_proj(x), self.k_norm), pattern.cos, pattern.sin)
        values = self._heads(self.v_proj(x), None)
        if cache is not None:
            keys, values = cache.extend(keys, values)
        mask = pattern.full_mask if self.full else pattern.local_mask
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        """[B, n, d] -> [B, H, n, head_dim], normed over the whole vector or over each head."""
        if norm is not None and not self.norm_per_head:
            x = norm(x)
        x = x.unflatten(-1, (-1, self.head_dim))
        if norm is not None and self.norm_per_head:
            x = norm(x)
        return x.transpose(1, 2)


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """y = x + norm(attention(x)); out = y + norm(mlp(y)). `number` counts from 1 within its tower."""

    def __init__(self, spec: ModelSpec, *, number: int) -> None:
        super().__init__()
        self.attention = Attention(spec, full=number % spec.full_attention_every == 0)
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = SwiGLU(spec)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps)

    def forward(self, x: Tensor, pattern: AttentionPattern, cache: LayerCache | None = None) -> Tensor:
        """x [B, n, d] -> [B, n, d]."""
        y = x + self.attention_norm(self.attention(x, pattern, cache))
        return y + self.mlp_norm(self.mlp(y))
