"""What each step of a plan will cost: tokens, FLOPs, GPU-hours at a stated utilisation, bytes, money.

Arithmetic on the recipe and on what storage already knows; nothing is measured here. GPU-hours are device-hours: FLOPs
over (peak x MFU). Only what is left to do costs: a step that is done costs nothing more, a resumable one the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import evaluated_steps, first_step
from ncp_model.flops import flops_per_token
from ncp_model.memory import checkpoint_bytes
from pipeline.dag.plan import PlannedStep
from pipeline.dag.store import step_store
from pipeline.storage import Storage

DEVICE_PEAK_FLOPS = {
    "A100": 312e12,
    "B200": 2250e12,
    "H100": 989.4e12,
    "H200": 989.4e12,
    "L40S": 362e12,
    "MI300X": 1307.4e12,
}
"""Dense bfloat16 operations a second, from the makers' data sheets (SXM or OAM parts, without sparsity)."""
DEFAULT_DEVICE = "H100"
DEFAULT_MFU = 0.4
TOKEN_BYTES = 4
"""A shard's `uint32`; document keys and lengths add a few per cent."""
FORWARD_SHARE = 1 / 3
"""Of a training token's operations, those of the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the estimate assumes of the machine."""

    device_flops: float
    """Peak operations a second of one device."""
    mfu: float
    gpu_hour_price: float | None = None

    @classmethod
    def chosen(
        cls, *, device: str, device_flops: float | None, mfu: float, gpu_hour_price: float | None
    ) -> Rates:
        """From the command line's options. Raises RecipeError for an unknown device or an impossible number."""
        if device_flops is None:
            peaks = {name.lower(): peak for name, peak in DEVICE_PEAK_FLOPS.items()}
            if device.lower() not in peaks:
                raise RecipeError(
                    f"--device: {device!r} is unknown; {nearest(device, DEVICE_PEAK_FLOPS)}; or give --device-flops"
                )
            device_flops = peaks[device.lower()]
        if not 0 < device_flops < math.inf:
            raise RecipeError(f"--device-flops: {device_flops:g} is not positive; an H100 has 989.4e12")
        if not 0 < mfu <= 1:
            raise RecipeError(f"--mfu: {mfu:g} is not in (0, 1]; use 0.4")
        if gpu_hour_price is not None and not 0 <= gpu_hour_price < math.inf:
            raise RecipeError(f"--gpu-hour-price: {gpu_hour_price:g} is not a price; use 0 or more")
        return cls(device_flops=device_flops, mfu=mfu, gpu_hour_price=gpu_hour_price)

    def gpu_hours(self, flops: float) -> float:
        return flops / (self.device_flops * self.mfu) / 3600


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What is left of one step. None where nothing is known before it runs, or where the notion does not apply."""

    tokens: int | None = None
    steps: int | None = None
    flops: float | None = None
    gpu_hours: float | None = None
    money: float | None = None
    storage_bytes: int | None = None
    """What the step leaves behind when it is done; also given for a step that is."""
    left_bytes: int | None = None
    """What of that is still to be written."""
    upper_bound: bool = False
    """Whether tokens, FLOPs and hours are the most it can be: a source may hold less held-out text than is asked for. (Of one
    whose first document is longer, that document is read whole.)"""


def step_costs(
    storage: Storage, recipe: Recipe, rows: Sequence[PlannedStep], rates: Rates
) -> dict[str, StepCost]:
    """Step name -> cost. Reads receipts of finished staging steps, nothing else."""
    costs = {}
    for row in rows:
        match row.step.kind:
            case "stage":
                costs[row.step.name] = _stage_cost(recipe, row, rates)
            case "evaluation":
                costs[row.step.name] = _evaluation_cost(recipe, row, rates)
            case "shards":
                costs[row.step.name] = _shards_cost(storage, recipe, row)
            case _:
                costs[row.step.name] = StepCost()
    return costs


def total_cost(costs: Mapping[str, StepCost]) -> StepCost:
    """The sum of what is known; `tokens` and `steps` of trajectories and staging together say nothing, so they are left out."""
    values = costs.values()
    return StepCost(
        flops=sum(cost.flops or 0.0 for cost in values),
        gpu_hours=sum(cost.gpu_hours or 0.0 for cost in values),
        money=None
        if all(cost.money is None for cost in values)
        else sum(cost.money or 0.0 for cost in values),
        storage_bytes=sum(cost.left_bytes or 0 for cost in values),
        left_bytes=sum(cost.left_bytes or 0 for cost in values),
        upper_bound=any(cost.upper_bound and cost.flops for cost in values),
    )


def _stage_cost(recipe: Recipe, row: PlannedStep, rates: Rates) -> StepCost:
    stage, stop = recipe.stages[row.step.name], row.step.milestone or 0
    one = checkpoint_bytes(recipe.model, stage.optimizer)
    start = stop if row.state == "done" else row.resumes_at or first_step(recipe, row.step.name)
    kept = kept_milestones(recipe, stage, stop)
    steps = stop - start
    tokens = steps * stage.global_batch_tokens
    return _priced(
        rates,
        tokens=tokens,
        steps=steps,
        flops=tokens * flops_per_token(recipe.model, stage.sequence_length).total,
        storage_bytes=one * len(kept),
        left_bytes=one * sum(step > start for step in kept),
    )


def kept_milestones(recipe: Recipe, stage: StageSpec, stop: int) -> list[int]:
    """Milestones of a stage that stay: its stop, those kept for ever, and those that are evaluated."""
    every = recipe.runtime.permanent_checkpoint_every_steps
    kept = {step for step in evaluated_steps(stage) if step < stop} | {stop}
    return sorted(kept | set(range(every, stop, every) if every else ()))


def _evaluation_cost(recipe: Recipe, row: PlannedStep, rates: Rates) -> StepCost:
    """The held-out text alone, at most: read once, and with a concept module once more without it. Suites come on top and are
    not known before their requests are fetched."""
    identity = row.step.identity
    tokens = 0 if row.state == "done" else identity["heldout_tokens"] * len(identity["heldout"])
    passes = 2 if recipe.model.concept.enabled else 1
    flops = passes * tokens * FORWARD_SHARE * flops_per_token(recipe.model, identity["sequence_length"]).total
    return _priced(rates, tokens=tokens, flops=flops, upper_bound=True)


def _shards_cost(storage: Storage, recipe: Recipe, row: PlannedStep) -> StepCost:
    """Published tokens before staging, counted ones after it."""
    tokens = recipe.sources[row.step.identity["source"]].tokens
    if row.state == "done":
        receipt = step_store(storage, row.step).receipt() or {}
        tokens = receipt.get("tokens", tokens)
    size = None if tokens is None else tokens * TOKEN_BYTES
    return StepCost(tokens=tokens, storage_bytes=size, left_bytes=0 if row.state == "done" else size)


def _priced(
    rates: Rates,
    *,
    tokens: int,
    flops: float,
    steps: int | None = None,
    storage_bytes: int | None = None,
    left_bytes: int | None = None,
    upper_bound: bool = False,
) -> StepCost:
    hours = rates.gpu_hours(flops)
    return StepCost(
        tokens=tokens,
        steps=steps,
        flops=flops,
        gpu_hours=hours,
        money=None if rates.gpu_hour_price is None else hours * rates.gpu_hour_price,
        storage_bytes=storage_bytes,
        left_bytes=left_bytes,
        upper_bound=upper_bound,
    )
