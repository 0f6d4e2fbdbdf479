"""The study's machinery: its text, its resumable runs, and the comparisons its page makes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from curriculum.load import load_recipe
from ncp_model.flops import flops_per_token, total_parameters
from pipeline.storage import Storage
from tests.benchmarks.study_baselines import PlannedRun, StudyRun, read_plan
from tests.benchmarks.study_corpus import html_paragraphs, pod_paragraphs, reads_as_prose
from tests.benchmarks.study_tables import Numbers
from tests.staged import stage_prose

PLANS = [Path(__file__).with_name(name) for name in ("study_plan.csv", "study_words_plan.csv")]
SENTENCE = "a paragraph of more than twelve words that a person could read with some pleasure"


def test_only_text_outside_code_and_tables_is_kept() -> None:
    page = f"<body><p>{SENTENCE} <b>here</b></p><pre>{SENTENCE}</pre><ul><li>one<li>two</ul><table><td><p>{SENTENCE}"
    assert [text for text in html_paragraphs(page) if text] == [f"{SENTENCE} here", "one", "two"]
    assert pod_paragraphs("=head1 NAME\n\nUse C<< L<perldoc|open> >>\nwell.\n\n  code") == ["Use open well."]
    assert reads_as_prose(SENTENCE)
    assert not reads_as_prose("0x10 0x20 0x30 " * 12) and not reads_as_prose("too few words")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_run_of_a_plan_is_a_valid_recipe_and_all_have_one_tokenizer(plan: Path) -> None:
    recipes = []
    for run in read_plan(plan):
        overrides = ["stage1.optimizer.lr=0.01" if o == "lr=tuned" else o for o in run.overrides]
        recipes.append(load_recipe(run.recipe, overrides))
    assert all(recipe.tokenizer == recipes[0].tokenizer for recipe in recipes)


@pytest.mark.parametrize("study", ["study", "study-words"])
def test_the_baselines_have_the_compute_and_the_parameters_that_their_names_say(study: str) -> None:
    recipe = load_recipe(f"{study}-ncp")
    ncp, length = recipe.model, recipe.stages["stage1"].sequence_length
    compute, parameters = (load_recipe(f"{study}-equal-{name}").model for name in ("compute", "parameters"))
    assert flops_per_token(compute, length).total == pytest.approx(
        flops_per_token(ncp, length).total, rel=0.004
    )
    assert total_parameters(parameters) == pytest.approx(total_parameters(ncp), rel=0.001)


def test_a_model_is_compared_at_the_rate_that_did_best_over_the_seeds(tmp_path: Path) -> None:
    """Not at the one that did best at the seed it was tuned with; and a rate of one seed beats none of three."""
    losses = {
        ("high-1", "tuning", 1, 0.4): 3.0,
        ("high-2", "comparison", 2, 0.4): 3.6,
        ("low-1", "tuning", 1, 0.2): 3.1,
        ("low-2", "rate", 2, 0.2): 3.2,
        ("lucky-1", "tuning", 1, 0.1): 2.0,
    }
    with (tmp_path / "runs.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("name", "phase", "recipe", "seed", "lr"))
        writer.writerows((name, phase, "study-words-ncp", seed, lr) for name, phase, seed, lr in losses)
    with (tmp_path / "documents.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("document", "tokens", "bytes", *(key[0] for key in losses)))
        writer.writerow(("d", 100, 300, *(100 * loss for loss in losses.values())))
    (tmp_path / "curves.csv").write_text("name,loss,step,mean\n")
    numbers = Numbers(tmp_path)
    assert numbers.tuned()["ncp"]["name"] == "lucky-1"
    assert numbers.comparison() == {"ncp": {"1": "low-1", "2": "low-2"}}


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch) -> None:
    storage = Storage(str(tmp_path / "store"))
    stage_prose(storage, "shards", vocab_size=258)
    small = (
        "stage1.tokens=1024",
        "stage1.global_batch_tokens=256",
        "stage1.schedule.warmup_steps=2",
        "stage1.evaluation.heldout_tokens=2000",
    )
    planned = PlannedRun(name="a", phase="test", recipe="study-ncp", seed=3, overrides=small)

    whole = StudyRun(planned, tmp_path / "whole", storage, "shards")
    whole.train()
    half = StudyRun(planned, tmp_path / "killed", storage, "shards")
    half.history = [half.step(0), half.step(1)]
    half._save()
    resumed = StudyRun(planned, tmp_path / "killed", storage, "shards")
    resumed.train()

    assert resumed.history == whole.history and len(whole.history) == 4
    for ours, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert whole.result()["documents"] == resumed.result()["documents"]


def test_a_difference_is_taken_over_documents_and_seeds_that_both_have(tmp_path) -> None:
    runs = [("a1", "A", 1), ("a2", "A", 2), ("b1", "B", 1), ("b3", "B", 3)]
    with (tmp_path / "runs.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("name", "phase", "recipe", "seed", "overrides"))
        writer.writerows((name, "comparison", recipe, seed, "") for name, recipe, seed in runs)
    rng = np.random.default_rng(0)
    with (tmp_path / "documents.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("document", "tokens", "bytes", *(name for name, _, _ in runs)))
        for document in range(50):
            nats = rng.uniform(200, 400)
            writer.writerow((document, 100, 300, nats, nats + 1, nats + 10, ""))
    (tmp_path / "curves.csv").write_text("name,loss,step,mean\n")
    numbers = Numbers(tmp_path)
    numbers.nats["b3"][:] = 5.0
    mean, (low, high), each = numbers.difference({"1": "a1", "2": "a2"}, {"1": "b1", "3": "b3"})
    assert mean == pytest.approx(-0.1) and each == [pytest.approx(-0.1)]
    assert low == pytest.approx(-0.1) and high == pytest.approx(-0.1)
