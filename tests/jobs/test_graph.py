"""What changes which step's identity: the contract of re-use, forks and extension."""

from __future__ import annotations

import pytest

from curriculum.errors import RecipeError
from curriculum.identity import UNKNOWN
from curriculum.load import load_recipe
from jobs.graph import build_graph, evaluates_beside, run_name
from pipeline.dag.step import check_graph

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}


def _fingerprints(*overrides: str) -> dict[str, str]:
    return {step.name: step.fingerprint for step in build_graph(load_recipe("demo", overrides), PINS)}


def _changed(*overrides: str) -> set[str]:
    base, other = _fingerprints(), _fingerprints(*overrides)
    return {name for name in base if base[name] != other[name]}


def test_the_demo_is_the_whole_road_in_order() -> None:
    steps = build_graph(load_recipe("demo"), PINS)
    check_graph(steps)
    assert [step.name for step in steps] == [
        "tokenizer",
        "shards-stdlib-code",
        "shards-stdlib-prose",
        "stage1",
        "untrained-eval",
        "stage1-eval",
        "stage2",
        "stage2-eval",
        "report",
    ]


def test_changing_stage_2_leaves_everything_before_it_alone() -> None:
    assert _changed("stage2.optimizer.lr=0.001") == {"stage2", "stage2-eval", "report"}


def test_raising_the_stop_of_stage_1_keeps_its_trajectory_and_moves_what_hangs_on_its_end() -> None:
    assert _changed("stage1.tokens=1228800") == {"stage1-eval", "stage2", "stage2-eval", "report"}
    steps = {step.name: step for step in build_graph(load_recipe("demo", ["stage1.tokens=1228800"]), PINS)}
    assert steps["stage1"].milestone == 300


def test_moving_the_horizon_is_another_trajectory() -> None:
    assert "stage1" in _changed("stage1.horizon_tokens=2000000")


def test_runtime_never_enters_an_identity() -> None:
    assert not _changed(
        "runtime.num_workers=7",
        "runtime.micro_batch_size=1",
        "runtime.checkpoint_every_steps=3",
        "runtime.retries=9",
        "runtime.locations.stdlib-code=/somewhere/else",
        "runtime.object_store_mib=99",
    )


def test_the_model_does_not_touch_the_data() -> None:
    changed = _changed("model.concept_layers=3")
    assert "stage1" in changed and not {name for name in changed if name.startswith(("shards", "tokenizer"))}


def test_a_new_pin_changes_all_that_reads_the_source() -> None:
    recipe = load_recipe("demo")
    base = {step.name: step.fingerprint for step in build_graph(recipe, PINS)}
    other = {s.name: s.fingerprint for s in build_graph(recipe, {**PINS, "stdlib-code": "e" * 64})}
    assert all(base[name] != other[name] for name in base)


def test_cleaning_is_a_step_of_its_own_before_the_shards_of_its_source() -> None:
    override = "sources.stdlib-prose.clean={filters: [gopher_quality], dedup: exact}"
    steps = build_graph(load_recipe("demo", [override]), PINS)
    check_graph(steps)
    names = [step.name for step in steps]
    assert names[1:4] == ["shards-stdlib-code", "clean-stdlib-prose", "shards-stdlib-prose"]
    changed = _changed(override)
    assert "shards-stdlib-prose" in changed and "stage1" in changed
    assert not changed & {"tokenizer", "shards-stdlib-code"}


def test_without_pins_nothing_has_a_fingerprint_yet() -> None:
    steps = build_graph(load_recipe("demo"), {})
    assert {step.fingerprint for step in steps} == {UNKNOWN}
    assert run_name(load_recipe("demo"), {}) == UNKNOWN


def test_a_run_is_named_after_its_recipe_and_what_it_asks_for() -> None:
    name = run_name(load_recipe("demo"), PINS)
    assert name.startswith("demo-") and len(name) == len("demo-") + 6
    assert run_name(load_recipe("demo", ["runtime.num_workers=5"]), PINS) == name
    assert run_name(load_recipe("demo", ["stage1.tokens=1228800"]), PINS) != name


def test_an_evaluation_beside_is_not_waited_for_by_the_next_stage_and_changes_no_identity() -> None:
    override = "stage1.evaluation.when=beside"
    assert not _changed(override)
    steps = {step.name: step for step in build_graph(load_recipe("demo", [override]), PINS)}
    assert steps["stage2"].after == () and steps["stage1-eval"].needs[0] == "stage1"
    usual = {step.name: step for step in build_graph(load_recipe("demo"), PINS)}
    assert usual["stage2"].after == ("untrained-eval", "stage1-eval")
    assert evaluates_beside(load_recipe("demo", [override])) and not evaluates_beside(load_recipe("demo"))
    assert not evaluates_beside(load_recipe("demo", ["stage2.evaluation.when=beside"])), "nothing trains then"


def test_a_gate_cannot_judge_an_evaluation_beside() -> None:
    with pytest.raises(
        RecipeError, match=r"stages\.stage1\.evaluation\.when: 'beside' and .* exclude each other"
    ):
        load_recipe("demo", ["stage1.evaluation.when=beside", "stage1.gate.max=3.0"])


def test_steps_claim_what_they_occupy() -> None:
    recipe = load_recipe(
        "demo", ["runtime.num_workers=3", "runtime.gpus_per_worker=1", "stage1.evaluation.when=beside"]
    )
    steps = {step.name: step for step in build_graph(recipe, PINS)}
    assert steps["stage1"].resources == {"CPU": 1.5, "GPU": 3.0}
    assert steps["stage1-eval"].resources == {"CPU": 0.5, "GPU": 1.0}
    assert steps["shards-stdlib-code"].resources == {"CPU": 1.0}
    assert steps["report"].resources == {}
