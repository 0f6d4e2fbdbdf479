"""One layer of each tower: a transformer block together with the routes applied after it.

A layer is also the unit of sharding, so a block and its routes are gathered together, in execution order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from curriculum.model_spec import ModelSpec
from ncp_model.grid import ChunkGrid, TokenGrid
from ncp_model.layers import AttentionPattern, Block, LayerCache
from ncp_model.mixing import State
from ncp_model.residual import CrossResidual, FinalConceptRoute, IntraResidual, RowSources, Sources


class TowerLayer(nn.Module):
    """A block and its IRC; `number` counts from 1 within the tower.

    The history passed in holds the tower's input and the raw outputs of its earlier layers.
    """

    def __init__(self, spec: ModelSpec, *, number: int, irc_softmax: bool = False) -> None:
        super().__init__()
        self.block = Block(spec, number=number)
        self.irc = (
            IntraResidual(spec.hidden_size, number + 1, softmax=irc_softmax) if spec.irc.enabled else None
        )
        self.condition_on_delta = spec.irc.cond == "delta"
        self.recompute_block = False  # see parallel.checkpoint_blocks

    def advance(
        self, x: Tensor, history: Sequence[State], pattern: AttentionPattern, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        """The block's raw output and the IRC's mixture, both [B, n, d]."""
        if self.recompute_block and torch.is_grad_enabled():
            raw = checkpoint(self.block, x, pattern, use_reentrant=False)
            assert isinstance(raw, Tensor)
        else:
            raw = self.block(x, pattern, cache)
        if self.irc is None:
            return raw, raw
        return raw, self.irc(history, raw, raw - x if self.condition_on_delta else raw)


class EncoderLayer(TowerLayer):
    """Encoder layer, also the layer of the vanilla stack."""

    def forward(
        self, x: Tensor, history: Sequence[State], pattern: AttentionPattern, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, n, d] -> raw output, and input of the next layer."""
        return self.advance(x, history, pattern, cache)


class ConceptLayer(TowerLayer):
    """Concept Module layer: block, IRC, then the encoder -> concept route over all encoder layers but the last."""

    def __init__(self, spec: ModelSpec, *, number: int) -> None:
        super().__init__(spec, number=number)
        self.read_encoder = (
            CrossResidual(spec.hidden_size, spec.encoder_layers - 1) if spec.crc.enabled else None
        )

    def forward(
        self,
        x: Tensor,
        history: Sequence[State],
        pattern: AttentionPattern,
        encoder: Sources | None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x [B, M, d] -> raw output, and input of the next layer."""
        raw, x = self.advance(x, history, pattern, cache)
        if self.read_encoder is not None and encoder is not None:
            x = self.read_encoder(x, encoder)
        return raw, x


class DecoderLayer(TowerLayer):
    """Decoder layer: block, IRC, final-concept route, encoder -> decoder route, concept -> decoder route."""

    def __init__(self, spec: ModelSpec, *, number: int) -> None:
        super().__init__(spec, number=number, irc_softmax=spec.irc.decoder_softmax)
        self.final_concept = FinalConceptRoute(spec) if spec.crc.enabled and spec.crc.final_route else None
        self.read_encoder = CrossResidual(spec.hidden_size, spec.encoder_layers) if spec.crc.enabled else None
        self.read_concept = CrossResidual(spec.hidden_size, spec.concept_layers) if spec.crc.enabled else None

    def forward(
        self,
        x: Tensor,
        history: Sequence[State],
        pattern: AttentionPattern,
        grid: ChunkGrid | TokenGrid,
        concept_rows: Tensor,
        encoder: Sources | None,
        concept: RowSources | None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, d], concept_rows [B, M + 1, d] -> raw output, and input of the next layer."""
        raw, x = self.advance(x, history, pattern, cache)
        read_concept_gate = None
        if self.final_concept is not None:
            gates = self.final_concept.gates()
            x = self.final_concept(x, concept_rows, grid, gates[0])
            read_concept_gate = gates[1]
        if self.read_encoder is not None and encoder is not None:
            x = self.read_encoder(x, encoder)
        if self.read_concept is not None and concept is not None:
            x = self.read_concept(x, concept, read_concept_gate)
        return raw, x
