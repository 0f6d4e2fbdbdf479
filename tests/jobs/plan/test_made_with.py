"""A plan over results of other software says so and does none of them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.plan.made_with import made_with_lines, made_with_other_software
from pipeline.dag.plan import make_plan
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.dag.versions import versions
from pipeline.storage import Storage


def finished(storage: Storage, step: Step, record: dict[str, Any]) -> None:
    store = StepStore(storage, step.key)
    store.write_identity(step)
    if step.milestone is None:
        store.complete_receipt(record)
    else:
        store.publish_milestone(step.milestone, record)


def test_other_software_is_named_once_for_all_steps_it_made(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    older = {**versions(), "torch": "2.0.0"}
    steps = [
        Step(name="tokenizer", kind="tokenizer", version=1, identity={"a": 1}),
        Step(name="stage1", kind="stage", version=1, identity={"a": 2}, milestone=5),
        Step(name="report", kind="report", version=1, identity={"a": 3}),
        Step(name="old", kind="report", version=1, identity={"a": 4}),
    ]
    finished(storage, steps[0], {"versions": older})
    finished(storage, steps[1], {"step": 5, "versions": older})
    finished(storage, steps[2], {"versions": dict(versions())})
    finished(storage, steps[3], {})  # from before versions were recorded
    rows = make_plan(steps, storage)
    found = made_with_other_software(storage, rows)
    assert list(found) == ["tokenizer", "stage1"] and {row.state for row in rows} == {"done"}
    (line,) = made_with_lines(found)
    assert "tokenizer, stage1 (torch 2.0.0 there" in line and "kept as it is" in line
