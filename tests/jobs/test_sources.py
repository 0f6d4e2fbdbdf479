"""Plans and runs compare every source with its pin: same content anywhere, other content never without a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curriculum.load import load_recipe
from jobs.launch import EVERYTHING, prepare_run
from jobs.plan.planned import Planned, plan_recipe
from jobs.runs.garbage import unnamed
from jobs.runs.record import read_run
from jobs.show.source_lines import source_lines, source_records
from jobs.steps.tokenizer import pinned
from pipeline.data.errors import SourceError
from pipeline.data.pins import renew_pin
from pipeline.storage import Storage
from tests.ncp_process import ROOT

RECIPE = """
recipe: mine
sources: {src: {}, other: {globs: ["**"]}}
tokenizer: {train: {vocab_size: 512, max_bytes_per_source: 100000, sources: [src]}}
model: {preset: tiny, hidden_size: 32, intermediate_size: 64, max_sequence_length: 64}
stages:
  first:
    mixture: {src: 1, other: 1}
    tokens: 4096
    sequence_length: 64
    global_batch_tokens: 512
    order_block: 16
    optimizer: {lr: 1.0e-3}
    schedule: {kind: cosine, warmup_steps: 2}
    evaluation: {suites: [], heldout_tokens: 0}
"""


class Place:
    def __init__(self, path: Path):
        self.path = path
        (path / "recipe.yaml").write_text(RECIPE)
        for folder in ("A", "B", "O"):
            (path / folder).mkdir()
            (path / folder / "a.jsonl").write_text(f'{{"text": "the text of {folder}"}}\n')
        (path / "O/notes.txt").write_text("no JSON")
        self.storage = Storage(str(path / "store"))

    def overrides(self, place: str) -> list[str]:
        return [f"runtime.locations.src={self.path}/{place}", f"runtime.locations.other={self.path}/O"]

    def recipe(self, place: str):
        return load_recipe(str(self.path / "recipe.yaml"), self.overrides(place))

    def plan(self, place: str) -> Planned:
        return plan_recipe(self.storage, self.recipe(place))[0]

    def prepare(self, place: str, say=lambda line: None) -> Planned:
        return prepare_run(
            self.storage, self.recipe(place), name=None, overrides=[], selection=EVERYTHING, say=say
        )

    def ncp(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(Path(sys.executable).parent / "ncp"),
            *arguments,
            "--storage",
            str(self.path / "store"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_another_place_with_other_text_is_refused_by_plan_and_run_until_it_is_renewed(place):
    first = place.prepare("A")
    for refuses in (place.plan, place.prepare):
        with pytest.raises(
            SourceError, match=r"sources\.src: .*B is not what was pinned .*1 changed \('a\.jsonl'\)"
        ):
            refuses("B")
    renew_pin(place.storage, "src", place.recipe("B").sources["src"], f"{place.path}/B")
    second = place.prepare("B")
    assert second.run != first.run
    assert {step.key for step in first.steps}.isdisjoint(
        step.key for step in second.steps if step.name != "shards-other"
    )
    assert place.prepare("A").run == first.run  # the run of the old text goes on where the old text lies


def test_steps_read_the_pin_that_they_were_planned_with(place):
    first = place.prepare("A")
    recipe = place.recipe("A")
    renew_pin(place.storage, "src", recipe.sources["src"], f"{place.path}/B")
    kept = pinned(recipe, place.storage, "src", first.pins["src"])
    assert kept.digest == first.pins["src"] and kept.location == f"{place.path}/A"
    assert not [item for item in unnamed(place.storage) if item.kind == "pin"]


def test_a_plan_shows_place_files_bytes_digest_and_what_is_left_out(place):
    before = source_records(place.plan("A").sources)
    assert before["src"]["digest"] is None and before["src"]["files"] == 1
    said: list[str] = []
    run = place.prepare("A", said.append)
    assert "other: 1 file left out (of no kind that can be read): 'notes.txt'" in said
    planned = place.plan("A")
    assert source_records(planned.sources)["src"] == {
        "place": f"{place.path}/A",
        "files": 1,
        "bytes": 26,
        "digest": run.pins["src"],
        "left_out": [],
        "left_out_count": 0,
        "note": "",
    }
    lines = source_lines(planned.sources)
    assert f"source src: {place.path}/A; 1 files, 26 B; digest {run.pins['src'][:12]}" in lines
    assert planned.run == run.run and read_run(place.storage, run.run)["pins"] == run.pins


def test_the_command_that_a_refusal_names_makes_the_next_run_possible(place):
    place.prepare("A")
    (place.path / "A/b.jsonl").write_text('{"text": "later"}\n')
    recipe = str(place.path / "recipe.yaml")
    refused = place.ncp("plan", recipe, *place.overrides("A"))
    assert refused.returncode == 2 and "1 added ('b.jsonl')" in refused.stderr
    assert "Traceback" not in refused.stderr
    compared = place.ncp("data", "pin", "src")
    assert compared.returncode == 2 and "1 added ('b.jsonl')" in compared.stderr
    renewed = place.ncp("data", "pin", "src", "--renew")
    assert renewed.returncode == 0, renewed.stderr
    planned = place.ncp("plan", recipe, *place.overrides("A"), "--json")
    record: dict[str, Any] = json.loads(planned.stdout)["sources"]
    assert record["src"]["files"] == 2 and record["src"]["digest"]
    unknown = place.ncp("data", "pin", "srx", "--renew")
    assert unknown.returncode == 2 and "'srx' has no pin" in unknown.stderr


def test_a_text_under_another_name_is_another_identity_and_the_usual_name_is_none(place):
    usual = place.prepare("A")
    recipe = load_recipe(
        str(place.path / "recipe.yaml"), [*place.overrides("A"), "sources.src.text_key=content"]
    )
    other, _ = plan_recipe(place.storage, recipe)
    changed = {step.name for step in other.steps} - {"shards-other"}
    keys = {step.name: step.key for step in usual.steps}
    assert {step.name for step in other.steps if step.key != keys[step.name]} >= {"tokenizer", "shards-src"}
    assert "shards-src" in changed
    same = load_recipe(str(place.path / "recipe.yaml"), [*place.overrides("A"), "sources.src.text_key=text"])
    assert plan_recipe(place.storage, same)[0].run == usual.run
