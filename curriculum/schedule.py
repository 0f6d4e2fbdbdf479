"""Learning rate as a pure function of the step.

`learning_rate(stage, step)` is the rate of optimizer step `step` (0-based: step 0 is the first update). The curve is
evaluated at n = step + 1, as OLMo-core counts: the last update before the horizon has exactly the final rate, and
warm-up's first rate is peak / warmup_steps. The peak is `optimizer.lr`. The curve ends at the *horizon*, which may lie
beyond the stop, so that raising the stop bends nothing.
"""

from __future__ import annotations

import math

from curriculum.schema import StageSpec
from curriculum.tokens import ceil_div, horizon_steps


def learning_rate(stage: StageSpec, step: int) -> float:
    """The LR of optimizer step `step` of `stage`. Raises ValueError for a negative step."""
    if step < 0:
        raise ValueError(f"step: {step} is negative; steps count from 0")
    peak, schedule, n = stage.optimizer.lr, stage.schedule, step + 1
    if n <= schedule.warmup_steps:
        return peak * n / schedule.warmup_steps
    final = peak * schedule.final_ratio
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "linear":
        return peak + (final - peak) * _progress(n, schedule.warmup_steps, horizon_steps(stage))
    if (
        schedule.half_from_step is not None
        and schedule.half_horizon_tokens is not None
        and n > schedule.half_from_step
    ):
        end = ceil_div(schedule.half_horizon_tokens, stage.global_batch_tokens)
        phase = 0.5 + 0.5 * _progress(n, schedule.half_from_step, end)
    else:
        phase = _progress(n, schedule.warmup_steps, horizon_steps(stage))
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * phase))


def _progress(n: int, start: int, end: int) -> float:
    """How far `n` is from `start` to `end`, in [0, 1]."""
    return min(1.0, (n - start) / max(1, end - start))
