"""Product quantiser and per-segment prediction heads (docs/model.md 2.4, 2.5).

Heads and codebooks live in one module and are used only inside its forward, so that a sharded run gathers them once.
They are stored stacked over the S segments; the public release's 32 separate tensors are slices of these.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curriculum.model_spec import ModelSpec


class ConceptPrediction(NamedTuple):
    """Per chunk j: the prediction of concept j + 1, and how chunk j itself quantises."""

    predicted: Tensor  # [B, M, d], what is injected into the decoder
    predicted_for_loss: Tensor  # [B, M, d], the mixture the NCP loss sees
    logits: Tensor  # [B, M, S * N]; without gradient unless the NCP loss is a cross entropy
    codes: Tensor  # int64 [B, M, S], nearest codeword of each segment of z_j; -1 where z_j is not a number
    vq_error: Tensor  # float32 [B, M], mean squared distance to it; its gradient reaches the codebook alone


def nearest_codes(z: Tensor, codebook: Tensor) -> Tensor:
    """argmin_n |z^s - e_n^s|^2: z [..., d], codebook [S, N, d_c] -> int64 [..., S], in at least float32.

    The term |z|^2 is the same for every n and is left out. Ties go to one of the nearest codewords. A segment that is not
    made of finite numbers is near to nothing: -1. Autocast has no say here.
    """
    precision = torch.promote_types(z.dtype, torch.float32)
    segments = z.detach().to(precision).unflatten(-1, (codebook.shape[0], -1))
    words = codebook.detach().to(precision)
    device = z.device.type
    exact = torch.autocast(device, enabled=False) if device in ("cpu", "cuda") else contextlib.nullcontext()
    with exact:
        products = torch.einsum("...sc,snc->...sn", segments, words)
    nearest = (words.square().sum(-1) - 2 * products).argmin(-1)
    return nearest.masked_fill(~segments.isfinite().all(-1), -1)


def decode_codes(codes: Tensor, codebook: Tensor) -> Tensor:
    """The codewords: codes [..., S] into codebook [S, N, d_c] -> [..., d]; NaN for a code of -1."""
    segments, entries, _ = codebook.shape
    flat = codes.clamp(min=0) + torch.arange(segments, device=codes.device) * entries
    words = F.embedding(flat, codebook.flatten(0, 1))
    return words.masked_fill((codes < 0).unsqueeze(-1), float("nan")).flatten(-2)


class ConceptPredictor(nn.Module):
    """Maps the Concept Module's normed state to a mixture of codewords, and quantises the chunk itself."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        segments, entries = spec.concept.segments, spec.concept.entries
        self.mix, self.readout = spec.concept.mix, spec.concept.readout
        self.grad_to_codebook = spec.ncp.grad_to_codebook
        self.logits_are_trained = spec.ncp.loss == "ce"
        self.head_weight = nn.Parameter(torch.empty(segments, entries, spec.hidden_size))
        self.head_bias = nn.Parameter(torch.empty(segments, entries))
        self.codebook = nn.Parameter(torch.empty(segments, entries, spec.segment_size))

    def forward(self, u: Tensor, z: Tensor) -> ConceptPrediction:
        """u [B, M, d], the module's normed output; z [B, M, d], the normed pooled state."""
        segments, entries, _ = self.codebook.shape
        logits = F.linear(u, self.head_weight.flatten(0, 1), self.head_bias.flatten())
        weights = logits.unflatten(-1, (segments, entries))
        if self.mix == "softmax":
            weights = weights.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(
                logits.dtype
            )
        mixture = _mix_codewords(weights, self.codebook)
        for_loss = mixture if self.grad_to_codebook else _mix_codewords(weights, self.codebook.detach())
        codes = nearest_codes(z, self.codebook)
        precision = torch.promote_types(z.dtype, torch.float32)
        quantised = decode_codes(codes, self.codebook).to(precision)
        vq_error = (quantised - z.detach().to(precision)).square().mean(-1)
        predicted = u if self.readout == "hidden" else mixture
        # FSDP hooks each differentiable output of a unit, and objects to views.
        logits = logits.clone() if self.logits_are_trained else logits.detach()
        return ConceptPrediction(predicted, for_loss, logits, codes, vq_error)


def _mix_codewords(weights: Tensor, codebook: Tensor) -> Tensor:
    """weights [B, M, S, N], codebook [S, N, d_c] -> [B, M, d]."""
    batch, chunks, segments, _ = weights.shape
    mixed = torch.bmm(weights.flatten(0, 1).transpose(0, 1), codebook)
    return mixed.transpose(0, 1).reshape(batch, chunks, segments * codebook.shape[2])
