"""The losses as float32 sums with their counts (docs/model.md 6), and cross entropy without full logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ncp_model.grid import AlignedGrid, ChunkGrid, make_grid

IGNORE = -100
# Logits in one piece of the chunked cross entropy: what a CPU's cache holds, or enough rows to fill a GPU.
LOGITS_PER_PIECE = {"cpu": 1 << 20, "cuda": 1 << 27}


@dataclass(frozen=True, kw_only=True)
class LossDenominators:
    """What each loss sum is divided by: valid tokens, concept pairs and chunks, over the whole global batch.

    Values may be fractional (a trainer whose gradients are averaged over ranks divides by the number of ranks). A zero
    stands for "nothing valid" and makes that loss zero.
    """

    ntp: float | Tensor
    ncp: float | Tensor
    vq: float | Tensor


def loss_counts(labels: Any, chunk_size: int, doc_starts: Any = None) -> LossDenominators:
    """Valid tokens, NCP pairs and chunks of one batch, as Python floats.

    `labels` [B, T] (numpy or torch) are next-token targets, IGNORE where there is none; `doc_starts` as DocumentGrid. It
    needs no model, so that a loader can add up global denominators before the forward pass.
    """
    labels = torch.as_tensor(labels)
    grid = make_grid(labels.shape[1], chunk_size, None if doc_starts is None else torch.as_tensor(doc_starts))
    chunks = valid_chunks(labels, grid)
    counts = (labels != IGNORE).sum(), grid.consecutive(chunks).sum(), chunks.sum()
    return LossDenominators(**dict(zip(("ntp", "ncp", "vq"), map(float, counts), strict=True)))


def valid_chunks(labels: Tensor, grid: ChunkGrid) -> Tensor:
    """Boolean [B, M]: chunks all of whose tokens are unmasked.

    Token t is unmasked if it is predicted, labels[t-1] != IGNORE. Nothing predicts a document's first token, so its own
    prediction decides.
    """
    predicts = labels != IGNORE
    predicted = torch.cat((predicts[:, :1], predicts[:, :-1]), dim=1)
    if isinstance(grid, AlignedGrid):
        return grid.valid_chunks(predicted)
    return grid.valid_chunks(torch.where(grid.positions == 0, predicts, predicted))


def ratio(total: Tensor, count: float | Tensor) -> Tensor:
    """total / count, or zero (with a zero gradient) where count is zero."""
    if isinstance(count, Tensor):
        return total / torch.where(count > 0, count, torch.ones_like(count))
    return total / count if count > 0 else total * 0.0


def next_concept_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error per element of chunk j's prediction against concept j + 1, detached: [B, M, d] -> [B, M - 1]."""
    precision = torch.promote_types(target.dtype, torch.float32)
    return (predicted[:, :-1].to(precision) - target[:, 1:].detach().to(precision)).square().mean(-1)


def next_code_error(logits: Tensor, codes: Tensor) -> Tensor:
    """Cross entropy against the next chunk's codes, mean over segments: [B, M, S * N], [B, M, S] -> [B, M - 1]."""
    logits = logits[:, :-1].unflatten(-1, (codes.shape[-1], -1))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.movedim(-1, 1), codes[:, 1:].clamp(min=0), reduction="none").mean(-1)


def masked_sum(errors: Tensor, valid: Tensor) -> Tensor:
    """Sum of `errors` where `valid`; what is not valid has no influence, not even as NaN."""
    return torch.where(valid, errors, 0.0).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """sum(ce) + z_weight * sum(logsumexp^2) of x @ weight.T, with the gradient formed piece by piece in the forward.

    Logits of more than LOGITS_PER_PIECE values never exist, and nothing is recomputed in the backward.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, z_weight: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocabulary = x.shape[0], weight.shape[0]
        piece = max(64, LOGITS_PER_PIECE.get(x.device.type, 1 << 24) // vocabulary)
        precision = torch.promote_types(x.dtype, torch.float32)
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x) if needs_x else None
        grad_weight = torch.zeros_like(weight, dtype=precision) if needs_weight else None
        ntp = torch.zeros((), dtype=precision, device=x.device)
        z = torch.zeros_like(ntp)
        for start in range(0, rows, piece):
            part = x[start : start + piece]
            target = labels[start : start + piece]
            logits = (part @ weight.t()).to(precision)
            valid = target != IGNORE
            index = torch.where(valid, target, 0).unsqueeze(1)
            highest = logits.amax(1, keepdim=True)
            target_logit = logits.gather(1, index)
            share = logits.sub_(highest).exp_()  # in place: the pieces are the largest tensors of a step
            total = share.sum(1, keepdim=True)
            lse = total.log() + highest
            ntp = ntp + torch.where(valid, (lse - target_logit).squeeze(1), 0.0).sum()
            z = z + torch.where(valid, lse.squeeze(1).square(), 0.0).sum()
            if not (needs_x or needs_weight):
                continue
            scale = valid.unsqueeze(1) * (1 + 2 * z_weight * lse)
            grad = share.mul_(scale / total)
            grad = grad.scatter_add_(1, index, -valid.to(precision).unsqueeze(1)).to(x.dtype)
            if grad_x is not None:
                torch.mm(grad, weight, out=grad_x[start : start + piece])
            if grad_weight is not None:
                grad_weight = (
                    grad_weight + (grad.t() @ part)
                    if grad.dtype != precision
                    else grad_weight.addmm_(grad.t(), part)
                )
        ctx.save_for_backward(*(g for g in (grad_x, grad_weight) if g is not None))
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(ntp, z)
        return ntp + z_weight * z, ntp, z

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _ntp: Tensor, _z: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        grad_x = saved.pop(0) * grad_total if ctx.needs_input_grad[0] else None
        grad_weight = (saved.pop(0) * grad_total).to(ctx.weight_dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None


def linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, z_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross entropy of the head's logits, without the logits.

    x [B, T, d], weight [V, d], labels [B, T] -> three float32 scalars: ntp + z_weight * z (which alone carries the
    gradient), the summed cross entropy, and the summed squared logsumexp.
    """
    return _LinearCrossEntropy.apply(x.flatten(0, 1), weight, labels.flatten(), z_weight)


def logits_cross_entropy(logits: Tensor, labels: Tensor, z_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """As linear_cross_entropy, from logits [B, T, V] that the caller wants anyway."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    labels = labels.flatten()
    lse = logits.logsumexp(1)
    ntp = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    z = masked_sum(lse.square(), labels != IGNORE)
    return ntp + z_weight * z, ntp.detach(), z.detach()
