"""Gates: what lets a run leave a stage, what refuses it with a reason, and what a person may override."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curriculum.load import load_recipe
from curriculum.schema import GateSpec
from jobs.runs.gates import GateBlocked, GateRefused, accept_gate, accepted_gate, check_gate
from jobs.runs.metric_log import MetricRow
from pipeline.storage import Storage

STAGE = load_recipe("demo").stages["stage1"]


def _metrics(*losses: float) -> list[MetricRow]:
    return [MetricRow(step=n, values={"ntp": loss}, timing={}) for n, loss in enumerate(losses, start=1)]


def _steady(count: int) -> list[float]:
    draw = random.Random(0)
    return [4.0 + draw.gauss(0, 0.1) for _ in range(count)]


def _evaluation(bits: float) -> dict[str, Any]:
    measured = {"nats_per_token": bits * 0.6931471805599453, "bits_per_byte": bits}
    source = {
        "tokens": 10,
        "bytes": 10,
        "model": measured,
        "zero_concept": None,
        "unigram": None,
        "concept": None,
    }
    return {"heldout": dict.fromkeys(STAGE.mixture, source), "tasks": {"sciq": {"accuracy": 0.5}}}


def test_a_finite_steady_loss_passes_without_a_bound() -> None:
    assert "not spiking" in check_gate("stage1", STAGE, _metrics(*_steady(300)), None)


def test_a_loss_that_is_not_a_number_refuses_and_says_how_to_override() -> None:
    with pytest.raises(GateRefused, match=r"last loss is nan; .*--accept-gate stage1"):
        check_gate("stage1", STAGE, _metrics(4.0, float("nan")), None)


def test_a_spike_at_the_end_refuses_but_one_long_ago_does_not() -> None:
    with pytest.raises(GateRefused, match="standard deviations above"):
        check_gate("stage1", STAGE, _metrics(*_steady(200), *([9.0] * 8)), None)
    check_gate("stage1", STAGE, _metrics(*([9.0] * 8), *_steady(200)), None)


def test_too_few_losses_are_no_evidence_of_a_spike() -> None:
    check_gate("stage1", STAGE, _metrics(4.0, 4.0, 9.0), None)


@pytest.mark.parametrize(
    ("gate", "passes"),
    [
        (GateSpec(max=2.0), True),
        (GateSpec(max=1.4), False),
        (GateSpec(min=1.6), False),
        (GateSpec(metric="tasks.sciq.accuracy", min=0.5), True),
        (GateSpec(metric="tasks.sciq.accuracy", min=0.6), False),
    ],
)
def test_a_bound_on_the_evaluation_decides(gate: GateSpec, passes: bool) -> None:
    stage = replace(STAGE, gate=gate)
    if passes:
        assert gate.metric in check_gate("stage1", stage, [], _evaluation(1.5))
    else:
        with pytest.raises(GateRefused, match=rf"{gate.metric} is .* --accept-gate stage1"):
            check_gate("stage1", stage, [], _evaluation(1.5))


def test_a_failed_evaluation_blocks_instead_of_judging() -> None:
    with pytest.raises(GateBlocked, match="its evaluation failed"):
        check_gate("stage1", replace(STAGE, gate=GateSpec(max=2.0)), [], None)


def test_a_metric_that_is_not_there_blocks_and_names_ones_that_are() -> None:
    with pytest.raises(GateBlocked, match=r"tasks.arc is no number .* mixture\.model\.bits_per_byte"):
        check_gate("stage1", replace(STAGE, gate=GateSpec(metric="tasks.arc", max=2.0)), [], _evaluation(1.5))


def test_an_acceptance_is_recorded_with_who_and_when(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    assert accepted_gate(storage, "r", "stage1") is None
    accept_gate(storage, "r", "stage1")
    record = accepted_gate(storage, "r", "stage1")
    assert record is not None and "@" in record["who"] and record["at"] > 0


def test_a_gate_is_part_of_no_identity() -> None:
    from jobs.graph import build_graph

    pins = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}
    with_gate = build_graph(load_recipe("demo", ["stage1.gate.max=1.0"]), pins)
    assert [s.fingerprint for s in with_gate] == [
        s.fingerprint for s in build_graph(load_recipe("demo"), pins)
    ]
