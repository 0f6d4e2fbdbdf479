"""Training curves of stored runs, ready for comparison: what was measured, in which data order, at which cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curriculum.errors import nearest
from curriculum.identity import fingerprint
from curriculum.tokens import first_step, stage_steps
from jobs.analysis.comparison import ComparisonError, LossCurve
from jobs.runs.metric_series import MetricSeries
from jobs.runs.record import read_run
from jobs.runs.recorded import recorded_recipe
from ncp_model.flops import flops_per_token
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

_ORDER_FIELDS = ("data", "mixture", "order", "packing", "repetition_filter", "sequence_length", "supply")
"""Of a trajectory's identity: what decides which tokens come at which position, and which of them have labels."""


def stage_curve(storage: Storage, run: str, stage: str, metric: str) -> LossCurve:
    """`metric` of one stage of `run` over the tokens of that stage, as far as it has come.

    Raises RecipeError for an unknown run, ComparisonError when the stage or the metric has no values.
    """
    record = read_run(storage, run)
    recipe = recorded_recipe(record)
    if stage not in recipe.stages:
        raise ComparisonError(
            f"compare: run {run!r} has no stage {stage!r}; {nearest(stage, list(recipe.stages))}"
        )
    spec = recipe.stages[stage]
    key = step_record(record, stage)["key"]
    columns = MetricSeries(storage, key).look().until(stage_steps(spec))
    if not len(columns.steps):
        raise ComparisonError(f"compare: {stage} of run {run!r} has taken no step yet; wait for it")
    loss = columns.column(metric)
    if not np.isfinite(loss).any():
        known = ", ".join(name for name in columns.values if np.isfinite(columns.values[name]).any())
        raise ComparisonError(
            f"compare: --metric {metric!r} has no value in {stage} of run {run!r}; known: {known}"
        )
    return LossCurve(
        run=run,
        tokens=columns.column("tokens_in_stage") - first_step(recipe, stage) * spec.global_batch_tokens,
        loss=loss,
        order=order_identity(storage, record, stage),
        flops_per_token=flops_per_token(recipe.model, spec.sequence_length).total,
        seed=spec.seed,
    )


def order_identity(storage: Storage, record: Mapping[str, Any], stage: str) -> str:
    """What two runs must share for their losses to be compared token by token: this stage's data order and its parents'.

    Raises ComparisonError when the stage's identity was not stored (it never started).
    """
    described = StepStore(storage, step_record(record, stage)["key"]).identity()
    if described is None:
        raise ComparisonError(f"compare: {stage} of run {record['run']!r} never started; wait for it")
    identity = described["identity"]
    parent = identity["init"].get("from")
    before: str | None = parent
    for step in record["steps"]:
        if parent is not None and step["fingerprint"] == parent:
            before = order_identity(storage, record, step["name"])
    own = {name: identity.get(name) for name in _ORDER_FIELDS}
    return fingerprint({"order": own, "before": before, "from_step": identity["init"].get("step")})


def step_record(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(step for step in record["steps"] if step["name"] == name)
