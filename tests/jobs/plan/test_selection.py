"""--until, --only and --force: what is worked on, and that force makes a new generation and touches nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.graph import build_graph
from jobs.plan.selection import (
    Selection,
    check_only,
    check_selection,
    generation_overrides,
    wanted_steps,
    with_forced,
)
from pipeline.dag.runner import StepContext, run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}
KINDS = ("tokenizer", "shards", "stage", "evaluation", "report")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _steps(*overrides: str) -> tuple[Step, ...]:
    return build_graph(load_recipe("demo", overrides), PINS)


def _work(context: StepContext) -> dict[str, Any]:
    if context.step.milestone is not None:
        context.store.publish_milestone(context.step.milestone, {"attempt": context.attempt})
    return {}


def _run(storage: Storage, steps: tuple[Step, ...], selection: Selection) -> list[str]:
    events: list[str] = []
    outcome = run_steps(
        steps,
        storage,
        dict.fromkeys(KINDS, _work),
        run="r",
        on_event=lambda event: events.append(event.step.name) if event.kind == "done" else None,
        wanted=wanted_steps(steps, selection),
    )
    assert outcome.ok
    return events


def test_until_brings_a_step_and_all_it_hangs_on(storage: Storage) -> None:
    done = _run(storage, _steps(), Selection(until="stage2"))
    assert set(done) == {
        "tokenizer",
        "shards-stdlib-code",
        "shards-stdlib-prose",
        "stage1",
        "untrained-eval",
        "stage1-eval",
        "stage2",
    }


def test_only_brings_one_step_and_insists_on_its_inputs(storage: Storage) -> None:
    steps, selection = _steps(), Selection(only="stage1")
    with pytest.raises(
        RecipeError, match=r"--only stage1: needs shards-stdlib-code, shards-.*; use --until stage1"
    ):
        check_only(storage, steps, selection)
    _run(storage, steps, Selection(until="shards-stdlib-code"))
    _run(storage, steps, Selection(until="shards-stdlib-prose"))
    check_only(storage, steps, selection)
    assert _run(storage, steps, selection) == ["stage1"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(until="stage3"), r"--until: no step 'stage3'; did you mean 'stage[12]'"),
        (Selection(only="x"), "--only: no step 'x'"),
        (Selection(force=("tokeniser",)), "--force: no step 'tokeniser'; did you mean 'tokenizer'"),
        (Selection(until="stage1", only="stage2"), "--only stage2: excludes --until stage1"),
    ],
)
def test_a_wrong_selection_is_refused(selection: Selection, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_selection(_steps(), selection)


def test_force_makes_the_next_generation_of_a_step_and_of_what_hangs_on_it(storage: Storage) -> None:
    first = _steps()
    _run(storage, first, Selection())
    before = {key: storage.read_bytes(key) for key in storage.keys("")}
    recipe = with_forced(storage, load_recipe("demo"), PINS, ["stage2"])
    assert generation_overrides(recipe) == ["generations={stage2: 1}"]
    forced = build_graph(recipe, PINS)
    assert _run(storage, forced, Selection()) == ["stage2", "stage2-eval", "report"]
    assert {key: storage.read_bytes(key) for key in before} == before, "no output was touched"
    assert all(step_store(storage, step).done(step) for step in first)


def test_the_same_force_after_a_crash_resumes_and_afterwards_asks_for_one_more(storage: Storage) -> None:
    _run(storage, _steps(), Selection())
    recipe = load_recipe("demo")
    once = with_forced(storage, recipe, PINS, ["stage1-eval"])
    assert with_forced(storage, recipe, PINS, ["stage1-eval"]) == once
    _run(storage, build_graph(once, PINS), Selection())
    assert with_forced(storage, recipe, PINS, ["stage1-eval"]).generations == {"stage1-eval": 2}


def test_what_was_never_computed_needs_no_force(storage: Storage) -> None:
    recipe = with_forced(storage, load_recipe("demo"), PINS, ["stage1"])
    assert recipe.generations == {"stage1": 0} and generation_overrides(recipe) == []
    assert build_graph(recipe, PINS) == _steps()


def test_the_override_names_the_same_steps_as_the_force() -> None:
    (override,) = ["generations={stage1: 3}"]
    assert _steps(override) == _steps("generations.stage1=3") != _steps()
    with pytest.raises(RecipeError, match=r"generations\.stage9: no such step"):
        _steps("generations.stage9=1")


def test_a_job_is_given_the_same_selection() -> None:
    selection = Selection(until="stage1", retry_failed=False)
    assert selection.arguments() == ["--until", "stage1", "--no-retry-failed"]
    assert Selection(only="stage1-eval", force=("x",)).arguments() == ["--only", "stage1-eval"]
