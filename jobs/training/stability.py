"""Skipping an optimizer step that would do harm, as OLMo 3 does: loss or gradient norm beyond 6 sigma of the last 128.

The judgement stays on the device: it becomes a boolean that the optimizers multiply into their update (OLMo-core's
SkipStepOptimizer), so no step waits for its own loss. The window is part of the training state: it goes into every
milestone's marker, so a resumed run skips the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from curriculum.errors import InputError
from curriculum.schema import StabilitySpec


class UnstableTraining(InputError):
    """Too many steps were skipped; the last milestone is kept and nothing is retried."""


class SkipWindow:
    """The last losses and gradient norms, and how many steps were skipped. Equal on every rank."""

    def __init__(self, spec: StabilitySpec, state: Mapping[str, Any] | None = None, device: str = "cpu"):
        self.spec = spec
        seen = [state["losses"], state["grad_norms"]] if state else [[], []]
        self._seen = torch.tensor(seen, dtype=torch.float64, device=device)  # [2, steps]
        self._skips = torch.tensor(int(state["skips"]) if state else 0, device=device)

    def should_skip(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Judge one step by the ones before it, and remember it: a boolean scalar, true for an outlier and for what is
        not a finite number. Nothing is read back from the device; `check` does that."""
        step = torch.stack((loss.double(), grad_norm.double()))
        skip = ~step.isfinite().all()
        if self.spec.skip_sigmas <= 0:
            return skip
        if self._seen.shape[1] >= max(2, self.spec.window // 2):
            bound = self._seen.mean(1) + self.spec.skip_sigmas * self._seen.std(1)
            skip = skip | (step > bound).any()
        self._seen = torch.cat((self._seen, step.unsqueeze(1)), dim=1)[:, -self.spec.window :]
        self._skips = self._skips + skip
        return skip

    @property
    def skips(self) -> int:
        """Steps that were skipped as outliers so far in the stage. Waits for the device."""
        return int(self._skips)

    def check(self) -> None:
        """Raise UnstableTraining after too many skips. Waits for the device."""
        if 0 < self.spec.max_skips < self.skips:
            raise UnstableTraining(
                f"stability.max_skips: {self.skips} steps were skipped, more than {self.spec.max_skips}; "
                "lower optimizer.lr, look at the data of these steps, or raise the bound"
            )

    def state(self) -> dict[str, Any]:
        """Plain values for the milestone's marker. Waits for the device."""
        losses, grad_norms = self._seen.tolist()
        return {"losses": losses, "grad_norms": grad_norms, "skips": self.skips}
