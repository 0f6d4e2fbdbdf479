"""Skipping an optimizer step that would do harm, as OLMo 3 does: loss or gradient norm beyond 6 sigma of the last 128.

The window is part of the training state: it goes into every milestone's marker, so a resumed run skips the same steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.schema import StabilitySpec


class UnstableTraining(ValueError):
    """Too many steps were skipped; the last milestone is kept and nothing is retried."""


class SkipWindow:
    """The last losses and gradient norms, and how many steps were skipped. Equal on every rank."""

    def __init__(self, spec: StabilitySpec, state: Mapping[str, Any] | None = None):
        self.spec = spec
        self.losses: list[float] = list(state["losses"]) if state else []
        self.grad_norms: list[float] = list(state["grad_norms"]) if state else []
        self.skips: int = int(state["skips"]) if state else 0

    def should_skip(self, loss: float, grad_norm: float) -> bool:
        """Judge one step by the ones before it, and remember it. Raises UnstableTraining after too many skips."""
        if self.spec.skip_sigmas <= 0:
            return False
        skip = self._outlier(loss, self.losses) or self._outlier(grad_norm, self.grad_norms)
        self.losses = [*self.losses, loss][-self.spec.window :]
        self.grad_norms = [*self.grad_norms, grad_norm][-self.spec.window :]
        if skip:
            self.skips += 1
            if 0 < self.spec.max_skips < self.skips:
                raise UnstableTraining(
                    f"stability.max_skips: {self.skips} steps were skipped, more than {self.spec.max_skips}; "
                    "lower optimizer.lr, look at the data of these steps, or raise the bound"
                )
        return skip

    def state(self) -> dict[str, Any]:
        """Plain values for the milestone's marker."""
        return {"losses": self.losses, "grad_norms": self.grad_norms, "skips": self.skips}

    def _outlier(self, value: float, window: Sequence[float]) -> bool:
        if len(window) < max(2, self.spec.window // 2):
            return False
        return value > statistics.fmean(window) + self.spec.skip_sigmas * statistics.stdev(window)
