"""Where the time of the steps goes: throughput, MFU, waiting for data, standing still for checkpoints.

A device works behind its host, so the time of one step cannot be told without stalling it. Between two rows the host has
waited for the device twice; what lies between is exact, and divided by the steps taken.
"""

from __future__ import annotations

import time


class StepClock:
    """Measures from one row to the next. All times in seconds, on this host's monotonic clock."""

    def __init__(self, *, tokens_per_step: int, flops_per_token: float, peak_flops: float):
        self._tokens, self._flops, self._peak = tokens_per_step, flops_per_token, peak_flops
        self._since = time.monotonic()
        self._steps = 0
        self._stalled = 0.0

    def step_taken(self) -> None:
        self._steps += 1

    def stalled(self, seconds: float) -> None:
        """The loop stood still for a checkpoint; not part of a step's time."""
        self._stalled += seconds

    def read(self, waited: float) -> dict[str, float]:
        """The timing columns of a row, means over the steps since the last one (of which there must be one), and start anew.

        `seconds` and `data_wait` (of which `waited` is the sum) of a step without checkpoints, `data_wait_share` of it,
        `tokens_per_second`; `checkpoint_stall` in all, and `checkpoint_share` of the whole time; `mfu` if the peak is known.
        """
        now = time.monotonic()
        elapsed = max(now - self._since, 1e-9)
        seconds = max(elapsed - self._stalled, 1e-9) / self._steps
        timing = {
            "seconds": seconds,
            "tokens_per_second": self._tokens / seconds,
            "data_wait": waited / self._steps,
            "data_wait_share": waited / self._steps / seconds,
            "checkpoint_stall": self._stalled,
            "checkpoint_share": self._stalled / elapsed,
        }
        if self._peak > 0:
            timing["mfu"] = self._tokens / seconds * self._flops / self._peak
        self._since, self._steps, self._stalled = now, 0, 0.0
        return timing
