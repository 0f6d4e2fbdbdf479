"""Forward passes for evaluation: logits where they are scored, and nowhere else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def model_device(model: nn.Module) -> torch.device:
    """Where the model's weights lie."""
    return next(model.parameters()).device


def logits_at(model: nn.Module, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits [n, V], at least float32, at `positions` (indices into the flattened input_ids [B, T]).

    Hidden states are selected as they enter `lm_head`, inside the model's own forward (so a sharded head is whole at
    that moment): with a vocabulary of 100,278 the full logits of one 8,192-token window are 3.3 GB, of which a
    benchmark reads a handful of rows.
    """

    def select(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0].flatten(0, 1)[positions],)

    hook = model.get_submodule("lm_head").register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids, return_logits=True).logits
    finally:
        hook.remove()
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of every target in nats: logits [B, T, V], targets [B, T] -> float32 (or wider) [B, T]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").unflatten(
        0, targets.shape
    )
