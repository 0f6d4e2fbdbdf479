"""Ladders as recipes: their rungs, and the laws that come out of evaluations in storage."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from curriculum.schema import Recipe
from jobs.analysis.ladder import plain_spec
from jobs.analysis.ladder_runs import fit_ladder, ladder_record, ladder_rungs, ladder_runs
from jobs.graph import build_graph
from jobs.show.report.scaling_page import render_scaling_page
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.dag.step import Step
from pipeline.data.pins import make_pin
from pipeline.storage import Storage

GAIN, EXPONENT = 1.74, 0.052


def loss(family: str, compute: float) -> float:
    """The constructed law: vanilla needs GAIN times the compute of NCP for the same loss."""
    return 5.0 * (compute * (GAIN if family == "ncp" else 1.0) / 1e10) ** -EXPONENT


def finish(storage: Storage, step: Step, nats: float) -> None:
    length = {"nats_per_token": nats, "bits_per_byte": 1.0}
    source = {
        "tokens": 10,
        "bytes": 40,
        "model": length,
        "zero_concept": None,
        "unigram": length,
        "concept": None,
    }
    lease = LeaseBook(storage, step.key).acquire("test")
    assert isinstance(lease, Lease)
    with lease:
        lease.seal({"result": {"heldout": {"stdlib-prose": source, "stdlib-code": source}}})


def placed(storage: Storage) -> Recipe:
    """The bundled ladder on a few bytes of text, which nobody reads here."""
    overrides = []
    for source in ("stdlib-prose", "stdlib-code"):
        overrides += [f"sources.{source}.builtin=null", f"runtime.locations.{source}={storage.uri('text')}"]
    return load_recipe("ladder-cpu", overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Every rung of the bundled ladder evaluated: the small shapes on the law, the large ones a little above it."""
    storage = Storage(str(tmp_path_factory.mktemp("ladder")))
    storage.write_bytes("text/a.jsonl", b'{"id": "a", "text": "a"}\n')
    recipe = placed(storage)
    pins = {
        name: make_pin(storage, name, recipe.sources[name], storage.uri("text")).digest
        for name in recipe.sources
    }
    for rung, made in ladder_rungs(recipe):
        step = next(step for step in build_graph(made, pins) if step.name == "stage1-eval")
        finish(storage, step, loss(rung.family, rung.budget) * (1.02 if rung.spec.hidden_size == 48 else 1.0))
    return storage


def test_a_constructed_ladder_gives_back_its_efficiency(trained: Storage) -> None:
    runs = ladder_runs(trained, placed(trained))
    assert {run.state for run in runs} == {"done"}
    result = fit_ladder("ladder-cpu", runs)
    assert result.efficiency is not None
    assert result.efficiency.ratio == pytest.approx(GAIN, rel=1e-6)
    assert result.efficiency.at_largest == pytest.approx(GAIN, rel=1e-6)
    assert result.efficiency.ratio_interval == pytest.approx((GAIN, GAIN), rel=1e-6)
    for laws in result.families.values():
        assert laws.power_law is not None and laws.power_law.b == pytest.approx(EXPONENT)
        assert [point.label.split("-")[1] for point in laws.frontier] == ["32"] * 3


def test_the_record_is_json_and_the_page_shows_every_rung(trained: Storage) -> None:
    runs = ladder_runs(trained, placed(trained))
    result = fit_ladder("ladder-cpu", runs)
    assert len(json.loads(json.dumps(ladder_record(result, runs)))["rungs"]) == 12
    page = render_scaling_page(result, runs)
    assert page.count("<circle") == 12 and "1.740 <small>times" in page
    assert all(run.rung.name in page for run in runs) and "<script" not in page


def test_a_ladder_in_the_middle_says_what_is_missing(tmp_path) -> None:
    recipe = load_recipe("ladder-cpu")
    runs = ladder_runs(Storage(str(tmp_path)), recipe)
    assert {run.state for run in runs} == {"to run"} and {run.loss for run in runs} == {None}
    one = [replace(run, loss=3.0) if index == 0 else run for index, run in enumerate(runs)]
    result = fit_ladder("ladder-cpu", one)
    assert result.efficiency is None and "needs two budgets" in result.families[one[0].rung.family].missing
    assert "1 of 12 rungs" in render_scaling_page(result, one)


def test_a_rung_is_a_recipe_of_one_stage_at_its_cost() -> None:
    recipe = load_recipe("ladder-olmo3")
    rungs = ladder_rungs(recipe)
    assert {rung.family for rung, _ in rungs} == {"ncp", "vanilla"}
    assert len({made.recipe for _, made in rungs}) == len(rungs)
    for rung, made in rungs:
        (stage,) = made.stages.values()
        assert stage.tokens == rung.tokens and stage.horizon_tokens is None and made.ladder is None
        assert abs(math.log(rung.flops / rung.budget)) < 0.02
        assert made.model.concept.enabled == (rung.family == "ncp")


def test_all_rungs_read_the_same_shards() -> None:
    recipe = load_recipe("ladder-cpu")
    pins = dict.fromkeys(recipe.sources, "a" * 64)
    shards = {
        tuple(step.fingerprint for step in build_graph(made, pins) if step.kind == "shards")
        for _, made in ladder_rungs(recipe)
    }
    assert len(shards) == 1


def test_the_plain_baseline_has_no_trace_of_concepts() -> None:
    spec = plain_spec(load_recipe("ladder-cpu").model)
    assert not (
        spec.concept.enabled or spec.irc.enabled or spec.crc.enabled or spec.ncp.weight or spec.vq.weight
    )


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("demo", "seed", "has no `ladder:` section"),
        ("ladder-cpu", "ladder.budgets=[-1]", "must be positive"),
        ("ladder-cpu", "ladder.budgets=[1e10,1e10]", "names one twice"),
        ("ladder-cpu", "ladder.families.mamba=[{hidden_size: 32, layers: [2,0,2]}]", "'mamba' is not one of"),
        ("ladder-cpu", "ladder.tokens_per_parameter=[1000,2000]", "leaves no shape"),
        ("ladder-cpu", "stage1.evaluation.heldout_tokens=0", "a rung's point is its held-out loss"),
    ],
)
def test_a_ladder_that_cannot_be_climbed_is_refused(recipe: str, override: str, message: str) -> None:
    overrides = [] if override == "seed" else [override]
    with pytest.raises(RecipeError, match=message):
        ladder_rungs(load_recipe(recipe, overrides))
