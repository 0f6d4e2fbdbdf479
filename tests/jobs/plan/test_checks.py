"""What a plan refuses before work starts, and what it says in words."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from curriculum.errors import InputError
from curriculum.load import load_recipe
from jobs.evaluation.heldout import CodeLength, ConceptQuality, SourceResult
from jobs.evaluation.metrics import TaskMetrics
from jobs.graph import build_graph
from jobs.plan import checks
from jobs.plan.checks import check_before_work, gate_metrics
from jobs.plan.outlook import raising_tokens, steps_without_rate, warnings
from jobs.plan.supply import stage_draws
from jobs.runs.mixture import mixture_average
from pipeline.dag.store import step_store
from pipeline.data.counters import Counters
from pipeline.data.manifest import Manifest, ShardEntry
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["stage1.gate={metric: mixture.model.bit_per_byte, max: 3}"],
            r"stages\.stage1\.gate\.metric: 'mixture\.model\.bit_per_byte' .* did you mean 'mixture\.model\.bits_per_byte'",
        ),
        (["stage1.gate={metric: mixture.model, max: 3}"], r"gate\.metric: 'mixture\.model' is no number"),
        (
            ["stage1.gate={metric: tasks.boolq_rc_0shot.accuracy, min: 0.5}"],
            r"gate\.metric: 'tasks\.boolq_rc_0shot\.accuracy'",
        ),
        (
            ["stage1.evaluation.heldout_tokens=0", "stage1.gate={max: 3}"],
            r"gate\.metric: 'mixture\.model\.bits_per_byte' needs held-out text",
        ),
        (
            ["stage1.evaluation={suites: [], heldout_tokens: 0}", "stage1.gate={max: 3}"],
            r"gate\.metric: .* the stage has no evaluation",
        ),
        (
            ["data.heldout_fraction=0"],
            r"stages\.stage1\.evaluation\.heldout_tokens: .*data\.heldout_fraction 0 keeps no text",
        ),
        (
            ["stage1.evaluation.suites=[quick, quikc]"],
            r"stages\.stage1\.evaluation\.suites\[1\]: 'quikc' is no suite",
        ),
        (["stage1.evaluation.suites=[quick, quick]"], r"stages\.stage1\.evaluation\.suites: names one twice"),
        (
            ["sources.stdlib-code.clean={filters: [c4], settings: {c4: {min_sentences: 3}}}"],
            r"sources\.stdlib-code\.clean\.settings\.c4\.min_sentences: c4 has no such setting; did you mean 'min_num_sentences'",
        ),
        (
            ["sources.stdlib-code.clean={filters: [c4], settings: {c4: {min_num_sentences: many}}}"],
            r"clean\.settings\.c4\.min_num_sentences: 'many' is not .*its default is 5",
        ),
        (
            ["sources.stdlib-code.clean={filters: [c4], settings: {fineweb: {}}}"],
            r"clean\.settings\.fineweb: 'fineweb' is not in .*clean\.filters",
        ),
    ],
)
def test_what_would_be_found_hours_later_is_refused_with_its_key(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_before_work(load_recipe("demo", overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "metric",
    [
        "mixture.model.bits_per_byte",
        "mixture.concept.ncp_r2",
        "heldout.stdlib-code.zero_concept.nats_per_token",
        "tasks.arc_easy_rc_0shot.accuracy",
        "suites.quick.score",
    ],
)
def test_what_an_evaluation_produces_may_be_a_gate(metric: str) -> None:
    check_before_work(load_recipe("demo", [f"stage1.gate={{metric: {metric}, max: 3}}"]))


def test_settings_that_a_filter_takes_are_accepted_and_reach_it() -> None:
    from pipeline.data.filters import FilterChain

    recipe = load_recipe(
        "demo",
        [
            "sources.stdlib-code.clean={filters: [c4], settings: {c4: {min_num_sentences: 2, filter_policy: false}}}"
        ],
    )
    check_before_work(recipe)
    clean = recipe.sources["stdlib-code"].clean
    assert clean is not None and clean.settings == {"c4": {"min_num_sentences": 2, "filter_policy": False}}
    FilterChain(clean)


def test_the_numbers_that_a_gate_may_name_are_those_that_evaluations_hold() -> None:
    def numbers(cls: type) -> set[str]:
        return {
            field.name
            for field in dataclasses.fields(cls)
            if "float" in str(field.type) or str(field.type) == "int"
        }

    assert set(checks.LENGTHS) == numbers(CodeLength) - {"bits_per_byte_interval"}
    assert set(checks.SOURCE_CONCEPT) == numbers(ConceptQuality)
    assert set(checks.SOURCE_COUNTS) == numbers(SourceResult)
    assert set(checks.TASK) <= numbers(TaskMetrics)
    source = {
        "tokens": 2,
        "bytes": 8,
        **{kind: {"nats_per_token": 1.0} for kind in ("model", "unigram", "zero_concept")},
        "concept": dict.fromkeys(checks.SOURCE_CONCEPT, 1.0),
    }
    averaged = mixture_average({"a": source}, {"a": 1.0})
    assert averaged is not None
    assert set(averaged["concept"]) == set(checks.MIXTURE_CONCEPT)
    assert set(averaged["model"]) == set(checks.LENGTHS)


def test_a_model_without_concepts_has_no_numbers_of_them() -> None:
    recipe = load_recipe("study-vanilla")
    assert not [path for path in gate_metrics(recipe, recipe.stages["stage1"]) if "concept" in path]


def test_nothing_but_the_standard_settings_of_filters_is_known() -> None:
    from pipeline.data.filters import FILTERS

    for build in FILTERS.values():
        assert {"exclusion_writer", "language"} <= set(inspect.signature(build).parameters)


def test_draws_are_exact_windows_and_their_shares(storage: Storage) -> None:
    recipe = load_recipe("demo", ["sources.stdlib-code.tokens=1000000"])
    draws = stage_draws(storage, recipe, build_graph(recipe, PINS))
    assert sum(draw.windows for draw in draws["stage2"].values()) == 50 * 16
    assert draws["stage2"]["stdlib-code"].share == pytest.approx(0.7)
    code, prose = draws["stage2"]["stdlib-code"], draws["stage2"]["stdlib-prose"]
    assert (code.basis, prose.basis, prose.epochs) == ("published", None, None)
    assert code.epochs == pytest.approx(code.windows / (1_000_000 // 256))


def test_what_is_staged_counts_and_not_what_was_published(storage: Storage) -> None:
    recipe = load_recipe("demo", ["sources.stdlib-code.tokens=1"])
    steps = build_graph(recipe, PINS)
    step = next(step for step in steps if step.name == "shards-stdlib-code")
    _staged(storage, step.key, tokens=256 * 1000 + 3)
    step_store(storage, step).complete_receipt({"tokens": 256 * 1000 + 3})
    draw = stage_draws(storage, recipe, steps)["stage2"]["stdlib-code"]
    assert (draw.basis, draw.epochs) == ("staged", draw.windows / 1000)


def test_too_little_published_text_is_refused_before_anything_is_staged(storage: Storage) -> None:
    recipe = load_recipe("demo", ["sources.stdlib-code.tokens=20000"])
    with pytest.raises(
        InputError,
        match=r"stages\.stage1\.mixture\.stdlib-code: 1,275 windows are needed, .* holds 78 \(published\)",
    ):
        stage_draws(storage, recipe, build_graph(recipe, {}))
    repeated = load_recipe(
        "demo", ["sources.stdlib-code.tokens=20000", "stage1.on_shortage=repeat", "stage2.on_shortage=repeat"]
    )
    draws = stage_draws(storage, repeated, build_graph(repeated, {}))
    assert draws["stage1"]["stdlib-code"].epochs == pytest.approx(1275 / 78)


def test_steps_at_a_learning_rate_of_zero_are_told() -> None:
    recipe = load_recipe(
        "demo",
        [
            "stage1.tokens=49152",
            "stage1.horizon_tokens=12288",
            "stage1.schedule={warmup_steps: 0, final_ratio: 0}",
        ],
    )
    assert steps_without_rate(recipe.stages["stage1"]) == 10
    (line,) = warnings(recipe)
    assert line.startswith("stages.stage1.horizon_tokens: the learning rate is 0 on 10 of 12 steps")
    assert warnings(load_recipe("demo")) == [], "the last step of a schedule may have none"
    assert "inside its warm-up" in warnings(load_recipe("demo", ["stage1.tokens=40960"]))[0]


def test_a_plan_says_whether_more_tokens_continue_a_stage() -> None:
    stages = load_recipe("demo").stages
    assert raising_tokens(stages["stage1"]).startswith("raising tokens continues this trajectory")
    assert raising_tokens(stages["stage2"]).startswith("raising tokens starts a new trajectory")


def _staged(storage: Storage, output: str, *, tokens: int) -> None:
    fields = {field.name: field.type for field in dataclasses.fields(ShardEntry)}
    values: dict[str, Any] = {name: "x" if kind == "str" else 0 for name, kind in fields.items()} | {
        "tokens": tokens
    }
    Manifest(
        source="s",
        output=output,
        tokenizer="t",
        eos_id=0,
        table=Manifest.of_shards([ShardEntry(**values)]),
        heldout=(),
        counters=Counters(),
    ).save(storage)
