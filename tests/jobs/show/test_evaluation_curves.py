"""Intermediate evaluations in the table and as curves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from curriculum.load import load_recipe
from jobs.graph import build_graph
from jobs.runs.evaluation_table import evaluation_rows
from jobs.runs.record import read_run, record_run
from jobs.show.evaluation_curves import evaluation_curves
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}


def result(bits: float) -> dict[str, Any]:
    length = {"bits_per_byte": bits, "nats_per_token": bits * math.log(2) * 3}
    source = {
        "tokens": 100,
        "bytes": 300,
        "model": length,
        "zero_concept": length,
        "unigram": length,
        "concept": None,
    }
    return {
        "heldout": {"stdlib-code": source, "stdlib-prose": source},
        "tasks": {},
        "suites": {"quick": {"score": bits / 10, "bits_per_byte": None}},
    }


@pytest.fixture
def storage(tmp_path) -> Storage:
    """A run whose first stage was evaluated at 80, 160 and its stop, 200; the second not yet."""
    storage = Storage(str(tmp_path))
    overrides = ["stage1.evaluation.every_steps=80"]
    recipe = load_recipe("demo", overrides)
    steps = build_graph(recipe, PINS)
    record_run(storage, "run", recipe, PINS, steps, overrides)
    for step in steps:
        if step.kind == "evaluation" and step.name != "stage2-eval":
            lease = LeaseBook(storage, step.key).acquire("run")
            assert isinstance(lease, Lease)
            number = step.identity["step"]
            with lease:
                lease.seal(
                    {
                        "attempt": 1,
                        "seconds": 1.0,
                        "stage": "stage1",
                        "step": number,
                        "result": result(9 - number / 100),
                    }
                )
    return storage


def test_intermediate_checkpoints_are_rows_by_their_step(storage: Storage) -> None:
    labels = [row.label for row in evaluation_rows(storage, read_run(storage, "run"))]
    assert labels == [
        "untrained", "unigram", "stage1 at step 80", "stage1 at step 160", "stage1", "stage1, concept zeroed",
    ]  # fmt: skip


def test_evaluations_are_curves_over_tokens(storage: Storage) -> None:
    curves = {curve.title: curve for curve in evaluation_curves(storage, read_run(storage, "run"))}
    assert curves.keys() == {"Held-out text, stage2 mixture", "Suite quick"}
    heldout = curves["Held-out text, stage2 mixture"]
    assert list(heldout.x) == [0, 80 * 4096, 160 * 4096, 200 * 4096]
    assert list(heldout.y) == pytest.approx([9, 8.2, 7.4, 7.0])
