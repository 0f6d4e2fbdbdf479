"""What a plan says a run costs: exact where it can be, and only for what is left to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.graph import build_graph
from jobs.plan.cost import Rates, StepCost, step_costs, total_cost
from jobs.plan.supply import stage_draws
from jobs.show.run_report import stage_flops
from ncp_model.flops import flops_per_token
from ncp_model.memory import checkpoint_bytes
from pipeline.dag.plan import make_plan
from pipeline.dag.store import step_store
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}
H100 = Rates(device_flops=989.4e12, mfu=0.4, gpu_hour_price=2.0)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_a_stage_costs_its_flops_at_the_stated_utilisation(storage: Storage) -> None:
    recipe = load_recipe("olmo3-7b-ncp")
    rows = make_plan(build_graph(recipe, {}), storage)
    cost = step_costs(storage, recipe, rows, H100)["stage1"]
    tokens = 1_366_138 * 4_194_304
    assert (cost.steps, cost.tokens) == (1_366_138, tokens)
    assert cost.flops is not None and cost.gpu_hours is not None
    assert cost.flops == tokens * flops_per_token(recipe.model, 8192).total
    assert cost.gpu_hours == pytest.approx(cost.flops / (989.4e12 * 0.4 * 3600))
    assert cost.gpu_hours == pytest.approx(197_662, abs=1), "5.73e12 tokens of the 8.9B model"
    assert cost.money == pytest.approx(2 * cost.gpu_hours)


def test_only_what_is_left_costs(storage: Storage) -> None:
    recipe = load_recipe("demo")
    steps = {step.name: step for step in build_graph(recipe, PINS)}
    step_store(storage, steps["stage1"]).publish_milestone(150, {})
    costs = step_costs(storage, recipe, make_plan(list(steps.values()), storage), H100)
    assert (costs["stage1"].steps, costs["stage1"].tokens) == (50, 50 * 4096)
    step_store(storage, steps["stage1"]).publish_milestone(200, {})
    costs = step_costs(storage, recipe, make_plan(list(steps.values()), storage), H100)
    assert costs["stage1"].flops == costs["stage1"].money == 0
    total = total_cost(costs)
    assert total.flops == sum(cost.flops or 0 for cost in costs.values()) and total.tokens is None


def test_shards_are_published_tokens_before_staging_and_counted_ones_after(storage: Storage) -> None:
    recipe = load_recipe("demo", ["sources.stdlib-code.tokens=1000000"])
    steps = build_graph(recipe, PINS)
    costs = step_costs(storage, recipe, make_plan(steps, storage), H100)
    assert costs["shards-stdlib-code"].storage_bytes == 4_000_000
    assert costs["shards-stdlib-prose"].tokens is None
    for step in steps:
        if step.kind == "shards":
            step_store(storage, step).complete_receipt({"tokens": 1234})
    costs = step_costs(storage, recipe, make_plan(steps, storage), H100)
    assert costs["shards-stdlib-code"].tokens == costs["shards-stdlib-prose"].tokens == 1234


def test_what_is_left_counts_only_what_is_not_stored_yet(storage: Storage) -> None:
    recipe = load_recipe("demo", ["runtime.permanent_checkpoint_every_steps=80"])
    steps = {step.name: step for step in build_graph(recipe, PINS)}
    one = checkpoint_bytes(recipe.model, recipe.stages["stage1"].optimizer)

    def costs() -> dict[str, StepCost]:
        return step_costs(storage, recipe, make_plan(list(steps.values()), storage), H100)

    assert (costs()["stage1"].storage_bytes, costs()["stage1"].left_bytes) == (3 * one, 3 * one)
    step_store(storage, steps["stage1"]).publish_milestone(100, {})
    assert (costs()["stage1"].storage_bytes, costs()["stage1"].left_bytes) == (3 * one, 2 * one)
    step_store(storage, steps["stage1"]).publish_milestone(200, {})
    assert costs()["stage1"].left_bytes == 0
    assert total_cost(costs()).storage_bytes == one, "the milestone of stage2 alone"


def test_an_evaluation_costs_at_most_what_it_asks_for(storage: Storage) -> None:
    recipe = load_recipe("demo")
    costs = step_costs(storage, recipe, make_plan(build_graph(recipe, PINS), storage), H100)
    assert costs["stage1-eval"].upper_bound and costs["stage1-eval"].tokens == 2 * 32768
    assert not costs["stage1"].upper_bound and total_cost(costs).upper_bound
    forward = 2 * 32768 * flops_per_token(recipe.model, 256).total / 3
    assert costs["stage1-eval"].flops == pytest.approx(2 * forward), "once more with the concept zeroed"


def test_a_stage_that_goes_on_with_its_parents_state_costs_from_there(storage: Storage) -> None:
    recipe = load_recipe("demo", ["stage2.init.load=full", "stage2.tokens=1638400"])
    rows = make_plan(build_graph(recipe, PINS), storage)
    cost = step_costs(storage, recipe, rows, H100)["stage2"]
    assert (cost.steps, cost.tokens) == (200, 200 * 4096)
    draws = stage_draws(storage, recipe, [row.step for row in rows])["stage2"]
    assert sum(draw.windows for draw in draws.values()) == 200 * 16
    assert stage_flops(recipe, "stage1") == pytest.approx(stage_flops(recipe, "stage2"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "H1000"}, "--device: 'H1000' is unknown; did you mean 'H100'"),
        ({"device_flops": 0.0}, "--device-flops: 0 is not positive"),
        ({"mfu": 1.5}, r"--mfu: 1.5 is not in \(0, 1\]"),
        ({"gpu_hour_price": -1.0}, "--gpu-hour-price: -1 is not a price"),
    ],
)
def test_impossible_rates_are_refused(options: dict[str, float], message: str) -> None:
    given = {"device": "h100", "device_flops": None, "mfu": 0.4, "gpu_hour_price": None} | options
    with pytest.raises(RecipeError, match=message):
        Rates.chosen(**given)  # type: ignore[arg-type]
