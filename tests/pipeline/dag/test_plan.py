"""The plan: done, resumable, running elsewhere, or to run and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.identity import UNKNOWN
from pipeline.dag.holder import Holder
from pipeline.dag.plan import make_plan
from pipeline.dag.runner import run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _step(
    name: str, *, milestone: int | None = None, needs: tuple[str, ...] = (), **identity: object
) -> Step:
    return Step(name=name, kind="work", version=1, identity=identity, milestone=milestone, needs=needs)


def _run(storage: Storage, *steps: Step) -> None:
    outcome = run_steps(steps, storage, {"work": lambda context: {}}, run="r", on_event=lambda event: None)
    assert outcome.ok


def test_nothing_computed_yet(storage: Storage) -> None:
    (row,) = make_plan([_step("a", x=1)], storage)
    assert (row.state, row.detail) == ("to run", "never computed")
    assert storage.keys("") == []


def test_a_finished_step_is_done(storage: Storage) -> None:
    _run(storage, _step("a", x=1))
    (row,) = make_plan([_step("a", x=1)], storage)
    assert row.state == "done"


def test_a_changed_step_says_which_field_differs_from_the_nearest_output(storage: Storage) -> None:
    _run(storage, _step("a", optimizer={"lr": 0.1}, seed=1), _step("b", optimizer={"lr": 0.7}, seed=9))
    _run(storage, _step("a", optimizer={"lr": 0.5}, seed=2))
    (row,) = make_plan([_step("a", optimizer={"lr": 0.2}, seed=1)], storage)
    assert row.state == "to run"
    assert row.detail == "optimizer.lr: 0.1 -> 0.2"
    assert row.differences == (("optimizer.lr", 0.1, 0.2),)
    assert row.nearest == _step("a", optimizer={"lr": 0.1}, seed=1).key


def test_a_trajectory_with_an_earlier_milestone_is_resumable(storage: Storage) -> None:
    step = _step("s", milestone=30, x=1)
    for milestone in (10, 20, 40):
        step_store(storage, step).publish_milestone(milestone, {})
    (row,) = make_plan([step], storage)
    assert (row.state, row.resumes_at) == ("resumable", 20)
    assert row.detail == "continues the same trajectory from step 20 to 30"
    (row,) = make_plan([_step("s", milestone=40, x=1)], storage)
    assert row.state == "done"


def test_a_step_that_another_run_computes_now_names_it(storage: Storage) -> None:
    step = _step("a", x=1)
    record = {"run": "theirs", "holder": Holder.here().record(), "at": 0}
    storage.create_json(f"{step.key}/lease/000001.json", record)
    (row,) = make_plan([step], storage)
    assert row.state == "running" and "theirs" in row.detail


def test_an_unpinned_source_makes_everything_after_it_unknown(storage: Storage) -> None:
    a = _step("a", content=UNKNOWN)
    b = _step("b", needs=("a",), of=a.fingerprint)
    assert [row.state for row in make_plan([a, b], storage)] == ["unknown", "unknown"]


def test_an_edge_to_a_later_step_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match="step a: hangs on 'b', which is not an earlier step"):
        make_plan([_step("a", needs=("b",)), _step("b")], storage)
