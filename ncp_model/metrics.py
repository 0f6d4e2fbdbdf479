"""Health of the learned concepts: NCP R^2 against trivial predictors, and codebook usage (docs/model.md 14).

States accumulate over batches, as float64 sums that may be added over ranks with `all_reduce`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ncp_model.output import ConceptOutput, ModelOutput


def _concept(output: ModelOutput) -> tuple[ConceptOutput, Tensor, Tensor]:
    concept = output.concept
    if concept is None or concept.valid is None or concept.pair_valid is None:
        raise ValueError("concept metrics need an output with labels and at least one complete chunk")
    return concept, concept.valid, concept.pair_valid


class NextConceptScore:
    """R^2 = 1 - mse / mse of a trivial predictor, over all valid pairs (chunk j predicting concept j + 1).

    Trivial predictors: `zero`; `mean`, the best constant vector over all scored targets (so R^2 against it is the share
    of variance explained); `copy`, concept j itself. A collapsed latent shows as R^2 near zero against one of them.
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = (
            None  # pairs, sum |error|^2, sum |target|^2, sum |target - previous|^2, sum target
        )

    def update(self, output: ModelOutput) -> None:
        """Add one batch; raises ValueError if the output has no concepts or no labels."""
        concept, _, valid = _concept(output)
        target, previous = concept.target[:, 1:].double(), concept.target[:, :-1].double()
        predicted = concept.predicted_for_loss[:, :-1].double()
        squares = [
            ((a - b).square().sum(-1) * valid).sum() for a, b in ((predicted, target), (target, target * 0))
        ]
        squares.append(((target - previous).square().sum(-1) * valid).sum())
        total = (target * valid.unsqueeze(-1)).sum((0, 1))
        batch = torch.cat((torch.stack((valid.sum().double(), *squares)), total))
        self.sums = batch if self.sums is None else self.sums + batch

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Add the states of all ranks."""
        if self.sums is not None:
            dist.all_reduce(self.sums, group=group)

    def compute(self) -> dict[str, float]:
        """`ncp_mse` per element, and `ncp_r2_zero`, `ncp_r2_mean`, `ncp_r2_copy`; empty if nothing was scored."""
        if self.sums is None or self.sums[0] == 0:
            return {}
        pairs, error, zero, copy = self.sums[:4].tolist()
        total = self.sums[4:]
        mean = zero - float(total.square().sum()) / pairs
        scores = {"zero": zero, "mean": mean, "copy": copy}
        result = {f"ncp_r2_{name}": 1 - error / max(base, 1e-30) for name, base in scores.items()}
        return {"ncp_mse": error / (pairs * len(total)), **result}


class CodebookUsage:
    """How often each codeword was the nearest one: counts [S, N]."""

    def __init__(self, segments: int, entries: int, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(segments, entries, dtype=torch.float64, device=device)

    def update(self, output: ModelOutput) -> None:
        """Add the codes of one batch's valid chunks that are numbers; raises ValueError as NextConceptScore.update."""
        concept, valid, _ = _concept(output)
        codes = concept.codes.flatten(0, 1).t()  # [S, B * M]
        weight = (valid.flatten() & (codes >= 0)).double().to(self.counts.device)
        self.counts.scatter_add_(1, codes.clamp(min=0).to(self.counts.device), weight)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Add the states of all ranks."""
        dist.all_reduce(self.counts, group=group)

    def perplexity(self) -> Tensor:
        """exp(entropy of the assignments) of each segment, [S]; 1 is collapse, N is uniform use, 0 is no data."""
        share = self.counts / self.counts.sum(1, keepdim=True).clamp(min=1)
        return torch.exp(-torch.xlogy(share, share).sum(1)) * (self.counts.sum(1) > 0)

    def used(self) -> Tensor:
        """Codewords of each segment that were nearest at least once, int64 [S]."""
        return (self.counts > 0).sum(1)

    def dead(self) -> Tensor:
        """Codewords of each segment that never were, int64 [S]."""
        return (self.counts == 0).sum(1)

    def compute(self) -> dict[str, float]:
        """Means over segments, and the worst one."""
        perplexity = self.perplexity()
        return {
            "codebook_perplexity": float(perplexity.mean()),
            "codebook_perplexity_min": float(perplexity.min()),
            "codebook_used": float(self.used().double().mean()),
            "codebook_dead": float(self.dead().double().mean()),
            "codebook_dead_max": float(self.dead().max()),
        }
