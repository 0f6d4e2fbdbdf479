"""Learning rate as a pure function of the step.

`learning_rate(stage, step)` is the rate of optimizer step `step` (0-based: step 0 is the first update). The peak is
`optimizer.lr`. Warm-up is linear and its first rate is peak / warmup_steps, as OLMo-core counts it one step later than
zero, so that no step is wasted at LR 0. The curve ends at the *horizon*, which may lie beyond the stop.
"""

from __future__ import annotations

import math

from curriculum.schema import StageSpec
from curriculum.tokens import horizon_steps


def learning_rate(stage: StageSpec, step: int) -> float:
    """The LR of optimizer step `step` of `stage`. Raises ValueError for a negative step."""
    if step < 0:
        raise ValueError(f"step: {step} is negative; steps count from 0")
    peak, schedule = stage.optimizer.lr, stage.schedule
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    span = max(1, horizon_steps(stage) - schedule.warmup_steps)
    progress = min(1.0, (step - schedule.warmup_steps) / span)
    if schedule.kind == "cosine":
        final = peak * schedule.final_ratio
        return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule.kind == "linear":
        return peak * (1.0 - progress * (1.0 - schedule.final_ratio))
    return peak
