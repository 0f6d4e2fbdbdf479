"""What a forward pass hands out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ncp_model.losses import LossDenominators, ratio


@dataclass(kw_only=True)
class ConceptOutput:
    """What the Concept Module produced for M chunks, and what metrics need of it."""

    predicted: Tensor  # [B, M, d]; row j predicts concept j + 1
    predicted_for_loss: Tensor  # [B, M, d]; as `predicted`, through the codebooks the NCP loss may move
    target: Tensor  # [B, M, d]; what row j is compared with is target[:, j + 1]
    normed: Tensor  # [B, M, d]; z, the layer-normed pooled state: the module's and the quantiser's input
    logits: Tensor  # [B, M, S * N]
    codes: Tensor  # int64 [B, M, S]
    vq_error: Tensor  # float32 [B, M]
    raw: tuple[Tensor, ...]  # raw outputs of the concept layers, for the routes into the decoder
    valid: Tensor | None = None  # boolean [B, M], with labels
    pair_valid: Tensor | None = None  # boolean [B, M - 1], with labels

    def detached(self) -> ConceptOutput:
        """The same values without gradients and without `raw`: what the model hands out."""
        values = {name: value.detach() for name, value in vars(self).items() if isinstance(value, Tensor)}
        return ConceptOutput(**values, raw=())


@dataclass(kw_only=True)
class ModelOutput:
    """Losses as float32 sums with their counts. Only `loss` is meant for `backward`.

    `ntp`, `z`: cross entropy and squared logsumexp summed over unmasked tokens; `ncp`, `vq`: mean squared error per
    element, summed over valid pairs and valid chunks.
    """

    loss: Tensor | None = None
    ntp: Tensor | None = None
    ncp: Tensor | None = None
    vq: Tensor | None = None
    z: Tensor | None = None
    counts: LossDenominators | None = None
    logits: Tensor | None = None
    concept: ConceptOutput | None = None

    def means(self) -> dict[str, Tensor]:
        """Each loss per valid element of this batch; zero where nothing is valid."""
        if self.counts is None or self.ntp is None or self.ncp is None or self.vq is None:
            raise ValueError("ModelOutput.means needs losses: call the model with labels")
        sums = {"ntp": self.ntp, "ncp": self.ncp, "vq": self.vq}
        return {name: ratio(total.detach(), getattr(self.counts, name)) for name, total in sums.items()}


for _output_class in (LossDenominators, ConceptOutput, ModelOutput):
    torch.export.register_dataclass(_output_class)  # so that FSDP finds the tensors in a module's output
