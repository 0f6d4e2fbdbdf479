"""Which checkpoints are evaluated and kept for it: asked of storage, the same whoever looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from curriculum.tokens import evaluated_steps, stage_steps
from jobs.graph import build_evaluation, build_graph
from jobs.runs.evaluation_points import awaiting_evaluation, evaluation_points
from jobs.runs.record import record_run
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.dag.step import Step, check_graph
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.command_lines import ncp_lines, parse_command

ROOT = Path(__file__).parents[3]
PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}
EVERY = "stage1.evaluation.every_steps=80"


def graph(*overrides: str) -> dict[str, Step]:
    steps = build_graph(load_recipe("demo", overrides), PINS)
    check_graph(steps)
    return {step.name: step for step in steps}


def recorded(storage: Storage, *overrides: str) -> dict[str, Step]:
    recipe = load_recipe("demo", overrides)
    record_run(storage, "run", recipe, PINS, build_graph(recipe, PINS), overrides)
    return graph(*overrides)


def finish(storage: Storage, step: Step) -> None:
    lease = LeaseBook(storage, step.key).acquire("run")
    assert isinstance(lease, Lease)
    with lease:
        lease.seal({"attempt": lease.number, "seconds": 1.0})


def test_every_kth_milestone_is_a_step_of_its_own_and_nothing_else_changes() -> None:
    base, other = graph(), graph(EVERY)
    new = other.keys() - base.keys()
    assert new == {"stage1-eval-000080", "stage1-eval-000160"}
    assert {other[name].identity["step"] for name in new} == {80, 160}
    unchanged = [name for name in base if name != "report"]
    assert [other[name].fingerprint for name in unchanged] == [base[name].fingerprint for name in unchanged]


@given(every=st.integers(0, 300), steps=st.integers(1, 300))
def test_the_stop_is_evaluated_once_whatever_the_interval(every: int, steps: int) -> None:
    recipe = load_recipe("demo", [f"stage1.tokens={steps * 4096}", f"stage1.evaluation.every_steps={every}"])
    points = [*evaluated_steps(recipe.stages["stage1"]), stage_steps(recipe.stages["stage1"])]
    assert points == sorted(set(points)) and points[-1] == steps
    assert all(point % every == 0 for point in points[:-1])


def test_ncp_eval_names_the_step_that_the_run_would(tmp_path) -> None:
    recipe = load_recipe("demo", [EVERY])
    run = graph(EVERY)
    for milestone, name in ((80, "stage1-eval-000080"), (200, "stage1-eval")):
        step = build_evaluation(recipe, PINS, "stage1", milestone, recipe.stages["stage1"].evaluation)[-1]
        assert step.key == run[name].key


def test_a_checkpoint_is_eligible_only_with_its_marker_and_done_only_with_its_receipt(tmp_path) -> None:
    storage = Storage(str(tmp_path))
    steps = recorded(storage, EVERY)

    def states() -> dict[str, str]:
        return {point.name: point.state for point in evaluation_points(storage, "run")}

    assert set(states().values()) == {"waiting"}
    store = StepStore(storage, steps["stage1"].key)
    storage.write_bytes(f"{steps['stage1'].key}/checkpoints/000000080-a000001/part", b"half of it")
    assert states()["stage1-eval-000080"] == "waiting"  # data without a marker is no checkpoint
    store.publish_milestone(80, {"step": 80})
    assert states()["stage1-eval-000080"] == "eligible" and states()["stage1-eval"] == "waiting"
    StepStore(storage, steps["stage1-eval-000080"].key).write_failure(1, {"error": "a lost node"})
    assert states()["stage1-eval-000080"] == "failed"
    held = LeaseBook(storage, steps["stage1-eval-000080"].key).acquire("run")
    assert isinstance(held, Lease) and states()["stage1-eval-000080"] == "running"
    with held:
        held.seal({"attempt": 1, "seconds": 1.0})
    assert states()["stage1-eval-000080"] == "done"


def test_retention_waits_for_what_is_to_be_evaluated_and_for_nothing_else(tmp_path) -> None:
    storage = Storage(str(tmp_path))
    steps = recorded(storage, EVERY)
    key = steps["stage1"].key
    milestones = [0, 50, 80, 100, 160]
    assert awaiting_evaluation(storage, key, milestones) == {0, 80, 160}
    finish(storage, steps["stage1-eval-000080"])
    assert awaiting_evaluation(storage, key, milestones) == {0, 160}
    assert awaiting_evaluation(storage, steps["stage2"].key, milestones) == {50}  # its stop


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage1.evaluation.every_steps=-1", "every_steps: -1 must not be negative"),
        ("stage1.evaluation.data=nowhere", "no source 'nowhere'"),
        ("stage1.evaluation.data=stdlib-code", "is builtin text"),
        ("runtime.evaluation_actors=0", "evaluation_actors: 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_its_key(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [override])


def test_questions_of_ones_own_are_identity_by_content_and_not_by_place() -> None:
    own = ["sources.mine.globs=[oe_eval_tasks/**]", "stage1.evaluation.data=mine"]

    def fingerprint(pins: dict[str, str], *more: str) -> Any:
        steps = build_graph(load_recipe("demo", [*own, *more]), {**PINS, **pins})
        return next(step.fingerprint for step in steps if step.name == "stage1-eval")

    here = fingerprint({"mine": "1" * 64}, "runtime.locations.mine=/here")
    assert here == fingerprint({"mine": "1" * 64}, "runtime.locations.mine=hf://datasets/a/b")
    assert here != fingerprint({"mine": "2" * 64}, "runtime.locations.mine=/here")
    assert here != graph()["stage1-eval"].fingerprint


@pytest.mark.parametrize("words", ncp_lines(ROOT / "docs" / "evaluation.md"), ids=" ".join)
def test_every_command_of_the_page_on_evaluations_parses(words: list[str]) -> None:
    parse_command(words)
