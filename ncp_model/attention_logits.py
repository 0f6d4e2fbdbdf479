"""How large attention's logits can be: with layer-wise QK-norm and Muon they may grow until the softmax saturates."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ncp_model.layers import Attention
from ncp_model.model import NCPModel
from ncp_model.parallel import tower_layers


class AttentionLogits:
    """Within the block, every forward pass leaves a bound of each layer's logits. A context manager.

    The bound is Cauchy-Schwarz's, max over heads of max|q| max|k| / sqrt(head_dim), from the normed queries and keys of
    all positions: never below the largest logit, and O(n d) where the logits themselves are O(n^2 d). RoPE turns vectors
    and keeps their length. Hooks see it, so a layer that torch.compile runs does not (see torch.compiler.set_stance).
    """

    def __init__(self, model: NCPModel) -> None:
        self.names = [
            f"{tower}.{number}"
            for tower in ("encoder", "concept", "decoder")
            for number in range(1, len(getattr(model, tower, ())) + 1)
        ]
        self._attentions = [layer.block.attention for layer in tower_layers(model)]
        self._handles: list[Any] = []
        self._longest: dict[tuple[int, str], Tensor] = {}

    def __enter__(self) -> AttentionLogits:
        self._longest.clear()
        for index, attention in enumerate(self._attentions):
            for part, norm in (("q", attention.q_norm), ("k", attention.k_norm)):
                self._handles.append(norm.register_forward_hook(self._hook(index, part, attention)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def bounds(self) -> Tensor:
        """float32 [layers], in the order of `names`: the bound over this rank's passes within the last block; 0 where none ran."""
        device = next(iter(self._longest.values())).device if self._longest else None
        bounds = torch.zeros(len(self._attentions), device=device)
        for index, attention in enumerate(self._attentions):
            queries, keys = (self._longest.get((index, part)) for part in ("q", "k"))
            if queries is not None and keys is not None:
                bounds[index] = (queries * keys).amax() / math.sqrt(attention.head_dim)
        return bounds

    def _hook(self, index: int, part: str, attention: Attention) -> Any:
        @torch.no_grad()
        def see(_module: nn.Module, _inputs: Any, normed: Tensor) -> None:
            heads = normed if attention.norm_per_head else normed.unflatten(-1, (-1, attention.head_dim))
            longest = torch.linalg.vector_norm(heads.detach(), dim=-1, dtype=torch.float32).flatten(0, -2)
            seen, key = longest.amax(0), (index, part)
            self._longest[key] = torch.maximum(self._longest[key], seen) if key in self._longest else seen

        return see
