"""Residual routes within and across the three towers, and their fusion (docs/model.md 2.6 - 2.9).

States are never stacked: a route reads each once and accumulates (`ncp_model.mixing`). The shared LayerNorm of a
cross-module route is applied algebraically. With mixing weights a_i that sum to 1 and
LN(S_i) = (S_i - mu_i) r_i * gamma + beta,

    sum_i a_i LN(S_i) = gamma * sum_i (a_i r_i) (S_i - mu_i) + beta,

so only the statistics mu and r of each source are computed, once, and the normed sources never exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curriculum.model_spec import ModelSpec
from ncp_model.grid import ChunkGrid, TokenGrid
from ncp_model.mixing import State, mix, norm_statistics


class RouteWeights(nn.Module):
    """W2 gelu(W1 x): one mixing logit per source and position (exact GELU, no biases, no pre-norm)."""

    def __init__(self, hidden_size: int, sources: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(sources, hidden_size))
        self.w2 = nn.Parameter(torch.empty(sources, sources))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n, d] -> [B, n, sources]."""
        return F.linear(F.gelu(F.linear(x, self.w1)), self.w2)


class IntraResidual(nn.Module):
    """IRC: the next layer's input as a learned mixture of the module's input and all its raw layer outputs.

    Starts as the standard residual stream: w2 is zero and `static` is [0, .., 0, 1].
    """

    def __init__(self, hidden_size: int, candidates: int, *, softmax: bool) -> None:
        super().__init__()
        self.weights = RouteWeights(hidden_size, candidates)
        self.static = nn.Parameter(torch.empty(candidates))
        self.softmax = softmax

    def forward(self, history: Sequence[State], newest: Tensor, condition: Tensor) -> Tensor:
        """`candidates` states [B, n, d] in all: history and the newest; condition [B, n, d] -> [B, n, d]."""
        weights = self.weights(condition) + self.static
        if self.softmax:
            weights = weights.softmax(-1, dtype=torch.promote_types(weights.dtype, torch.float32))
        return mix(history, weights, newest=newest)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """States that a family of cross-module routes reads, with the family's shared LayerNorm.

    `mean` and `rstd` are [B, n, K] in at least float32, one column per state [B, n, d].
    """

    states: tuple[State, ...]
    mean: Tensor
    rstd: Tensor
    scale: Tensor
    bias: Tensor

    def mix(self, weights: Tensor) -> Tensor:
        """sum_i weights_i (S_i - mu_i) r_i: weights [B, n, K] -> [B, n, d], before the norm's scale and bias."""
        weights = weights * self.rstd
        return mix(self.states, weights, offset=-(weights * self.mean).sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class RowSources:
    """As Sources, at chunk resolution but read by tokens: `states` is stacked, [B, M + 1, K, d], row 0 being zero.

    The route weights are laid out by row and contracted there, so that the states are never repeated per token.
    """

    grid: ChunkGrid | TokenGrid
    states: Tensor
    mean: Tensor
    rstd: Tensor
    scale: Tensor
    bias: Tensor

    def mix(self, weights: Tensor) -> Tensor:
        """As Sources.mix, for weights [B, T, K] -> [B, T, d]."""
        weights = self.grid.by_row(weights) * self.rstd.unsqueeze(2)
        offset = (weights * self.mean.unsqueeze(2)).sum(-1, keepdim=True)
        mixed = torch.matmul(weights.to(self.states.dtype), self.states) - offset.to(self.states.dtype)
        return self.grid.by_token(mixed)


def token_sources(states: Sequence[State], norm: nn.LayerNorm) -> Sources:
    """Prepare states [B, n, d] for routes at their own resolution."""
    statistics = [norm_statistics(state.value, norm.eps) for state in states]
    mean, rstd = (torch.stack(column, dim=-1) for column in zip(*statistics, strict=True))
    return Sources(states=tuple(states), mean=mean, rstd=rstd, scale=norm.weight, bias=norm.bias)


def row_sources(rows: Tensor, norm: nn.LayerNorm, grid: ChunkGrid | TokenGrid) -> RowSources:
    """Prepare stacked concept states [B, M + 1, K, d], the zero row included, to be read by tokens."""
    mean, rstd = norm_statistics(rows, norm.eps)
    return RowSources(grid=grid, states=rows, mean=mean, rstd=rstd, scale=norm.weight, bias=norm.bias)


class CrossResidual(nn.Module):
    """CRC: y + gate * diag * sum_i softmax(W2 gelu(W1 y))_i LN(S_i), reading another module's states."""

    def __init__(self, hidden_size: int, sources: int) -> None:
        super().__init__()
        self.weights = RouteWeights(hidden_size, sources)
        self.diag = nn.Parameter(torch.empty(hidden_size))

    def forward(self, y: Tensor, sources: Sources | RowSources, gate: Tensor | None = None) -> Tensor:
        """y [B, n, d] -> [B, n, d]; `gate` is a scalar, one if absent."""
        logits = self.weights(y)
        weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        diag = self.diag if gate is None else self.diag * gate.to(self.diag.dtype)
        return torch.addcmul(y, sources.mix(weights), diag * sources.scale).add_(diag * sources.bias)


class FinalConceptRoute(nn.Module):
    """The predicted concept into one decoder layer: x + gate * diag * LN(b_t), with a layer-own norm.

    Holds the gate between this route (element 0) and the concept -> decoder CRC (element 1).
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
        self.diag = nn.Parameter(torch.empty(spec.hidden_size))
        self.gate_logits = nn.Parameter(torch.empty(2))

    def gates(self) -> Tensor:
        """[2], summing to one, in at least float32."""
        return self.gate_logits.softmax(-1, dtype=torch.promote_types(self.gate_logits.dtype, torch.float32))

    def forward(self, x: Tensor, rows: Tensor, grid: ChunkGrid | TokenGrid, gate: Tensor) -> Tensor:
        """x [B, T, d], rows of predicted concepts [B, M + 1, d] (row 0 zero) -> [B, T, d]."""
        return grid.add_rows(x, self.norm(rows) * (self.diag * gate.to(self.diag.dtype)))


class Fusion(nn.Module):
    """Joins the token stream with the predicted concept (docs/model.md 2.6)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
        self.concept_norm = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
        self.alpha = nn.Parameter(torch.empty(1))  # [1], as a zero-dimensional parameter cannot be sharded

    def forward(self, h: Tensor, rows: Tensor, grid: ChunkGrid | TokenGrid) -> Tensor:
        """LN(h_t) + alpha LN(b_t): h [B, T, d], concept rows [B, M + 1, d]. The zero row's norm is the bias."""
        return grid.add_rows(self.token_norm(h), self.alpha * self.concept_norm(rows))


class RouteNorms(nn.Module):
    """The LayerNorms that each family of cross-module routes shares (docs/model.md 2.8)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.encoder_to_concept = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
        self.encoder_to_decoder = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
        self.concept_to_decoder = nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps)
