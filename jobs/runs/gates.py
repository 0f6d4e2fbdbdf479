"""Gates: may the next stage start? Asked of the parent stage's loss and evaluation, before the first step.

A gate is an edge of the run and part of no identity. It *refuses* with a reason when the loss is not finite or the last
losses are a spike, or when a measured value misses the stage's bound; it *blocks* while the value is not there because
the evaluation failed. `--accept-gate STAGE` overrides a refusal; who did so and when is kept beside the run.
"""

from __future__ import annotations

import getpass
import math
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.schema import GateSpec, StageSpec
from jobs.runs.metric_log import MetricRow
from jobs.runs.mixture import mixture_average
from pipeline.dag.runner import Blocked, Refused
from pipeline.storage import Storage

SPIKE_SIGMAS = 6.0
SPIKE_WINDOW = 128
SPIKE_TAIL = 8
"""The mean of the last losses is held against the window before them."""


class GateRefused(Refused):
    """The next stage may not start. The message gives the reason and the command that overrides it."""


class GateBlocked(Blocked):
    """The gate's value is missing because the evaluation failed; evaluate again, nothing was judged."""


def check_gate(
    stage_name: str, stage: StageSpec, metrics: Sequence[MetricRow], evaluation: Mapping[str, Any] | None
) -> str:
    """One line that says why the stage may be left. Raises GateRefused, or GateBlocked."""
    override = f"to go on all the same: --accept-gate {stage_name}"
    losses = [row.values["ntp"] for row in metrics if row.values["ntp"] is not None]
    if losses and not math.isfinite(losses[-1]):
        raise GateRefused(f"gate of {stage_name}: its last loss is {losses[-1]}; {override}")
    excess = spike_sigmas(losses)
    if excess is not None and excess > SPIKE_SIGMAS:
        raise GateRefused(
            f"gate of {stage_name}: its last {SPIKE_TAIL} losses lie {excess:.1f} standard deviations above the "
            f"{SPIKE_WINDOW} before them; {override}"
        )
    if stage.gate is None:
        return f"gate of {stage_name}: loss is finite and not spiking"
    value = gate_value(stage_name, stage, stage.gate, evaluation)
    if stage.gate.max is not None and value > stage.gate.max:
        raise GateRefused(
            f"gate of {stage_name}: {stage.gate.metric} is {value:.4f}, above its maximum {stage.gate.max}; {override}"
        )
    if stage.gate.min is not None and value < stage.gate.min:
        raise GateRefused(
            f"gate of {stage_name}: {stage.gate.metric} is {value:.4f}, below its minimum {stage.gate.min}; {override}"
        )
    return f"gate of {stage_name}: {stage.gate.metric} is {value:.4f}"


def spike_sigmas(losses: Sequence[float]) -> float | None:
    """How far the mean of the last losses lies above the window before them, in its standard deviations."""
    before, tail = losses[-SPIKE_WINDOW - SPIKE_TAIL : -SPIKE_TAIL], losses[-SPIKE_TAIL:]
    if len(before) < SPIKE_WINDOW // 2:
        return None
    spread = statistics.stdev(before)
    return (statistics.fmean(tail) - statistics.fmean(before)) / spread if spread > 0 else None


def gate_value(
    stage_name: str, stage: StageSpec, gate: GateSpec, evaluation: Mapping[str, Any] | None
) -> float:
    """The number that the gate's dotted path names in the stage's evaluation.

    `mixture.*` is the held-out average with the stage's own weights: `mixture.model.bits_per_byte`.
    """
    if evaluation is None:
        raise GateBlocked(
            f"gate of {stage_name}: its evaluation failed, so {gate.metric} is not known; run again"
        )
    found: Any = {**evaluation, "mixture": mixture_average(evaluation["heldout"], stage.mixture)}
    for part in gate.metric.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None and _is_known(gate.metric, evaluation):
        raise GateRefused(
            f"gate of {stage_name}: {gate.metric} is null: the evaluation could not measure it (log-probabilities that are no "
            f"numbers, or nothing scored); to go on all the same: --accept-gate {stage_name}"
        )
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise GateBlocked(
            f"gate of {stage_name}: {gate.metric} is no number in its evaluation; "
            "name one such as mixture.model.bits_per_byte or tasks.arc_easy_rc_0shot.accuracy"
        )
    return float(found)


def _is_known(metric: str, evaluation: Mapping[str, Any]) -> bool:
    """Whether the evaluation names the number, whatever it is."""
    *places, last = metric.split(".")
    found: Any = evaluation
    for part in places:
        found = found.get(part) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping) and last in found


def accept_gate(storage: Storage, run: str, stage: str) -> None:
    """Record that a person lets the run leave `stage` whatever its gate says."""
    record = {"stage": stage, "who": f"{getpass.getuser()}@{socket.gethostname()}", "at": time.time()}
    storage.create_json(_acceptance_key(run, stage), record)


def accepted_gate(storage: Storage, run: str, stage: str) -> dict[str, Any] | None:
    key = _acceptance_key(run, stage)
    return storage.read_json(key) if storage.exists(key) else None


def _acceptance_key(run: str, stage: str) -> str:
    return f"runs/{run}/gates/{stage}.json"
