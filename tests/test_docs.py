"""Documents say what is so: their commands parse, and their numbers are the recipe's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from curriculum.load import load_recipe
from curriculum.tokens import stage_steps
from jobs.cluster.preflight import training_demand
from ncp_model import build_model
from ncp_model.flops import flops_per_token, total_parameters
from ncp_model.muon import Muon
from ncp_model.optim import build_optimizers
from tests.command_lines import ncp_lines, parse_command

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "run_8.9b.md"
RECIPE = load_recipe("olmo3-7b-ncp")
TFLOPS, UTILISATION = 989e12, 0.40


@pytest.mark.parametrize("words", ncp_lines(PAGE), ids=" ".join)
def test_every_command_of_the_page_parses(words: list[str]) -> None:
    _, values = parse_command(words)
    if "recipe" in values:
        load_recipe(values["recipe"], values.get("overrides") or [])


def test_the_pages_table_is_the_recipes() -> None:
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:3]]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and len(cells := line.strip("|").split("|")) == 3
    }
    for column, stage in enumerate(RECIPE.stages.values()):
        steps = stage_steps(stage)
        tokens = steps * stage.global_batch_tokens
        flops = tokens * flops_per_token(RECIPE.model, stage.sequence_length).total
        hours = flops / (UTILISATION * TFLOPS) / 3600
        staged = [RECIPE.sources[source].tokens or 0 for source in stage.mixture]
        shards = sum(math.ceil(amount / RECIPE.data.shard_tokens) for amount in staged)
        expected = {
            "optimizer steps": f"{steps:,}",
            "tokens a step": f"{stage.global_batch_tokens:,}",
            "tokens": f"{tokens:,}",
            "training FLOPs": f"{flops:.3g}",
            "GPU-hours, at 40 % of 989 TFLOP/s (*assumed*)": f"{hours:,.0f}",
            f"days on {training_demand(RECIPE.runtime).count} such GPUs": f"{hours / 24 / RECIPE.runtime.max_workers:.1f}",
            "sources": f"{len(staged)}",
            "tokens to stage, as published": f"{sum(staged):,}",
            f"shards of {RECIPE.data.shard_tokens:,} tokens, at least": f"{shards:,}",
            "bytes of shards": f"{4 * sum(staged) / 1e12:.2f} TB",
        }
        assert {name: rows[name][column] for name in expected} == expected


def test_the_pages_checkpoint_is_the_models() -> None:
    model = build_model(RECIPE.model, device="meta")
    optimizers = build_optimizers(model, RECIPE.stages["stage1"].optimizer).optimizers
    held = {
        isinstance(one, (Muon, torch.optim.Muon)): sum(
            parameter.numel() for group in one.param_groups for parameter in group["params"]
        )
        for one in optimizers
    }
    parameters = total_parameters(RECIPE.model)
    size = 4 * parameters + 4 * held[True] + 8 * held[False]
    text = " ".join(PAGE.read_text().split())
    assert f"{parameters:,} parameters" in text
    assert f"momentum of {held[True]:,} of them" in text and f"other {held[False]:,}:" in text
    assert f"{size / 1e9:.2f} GB" in text
    runtime = RECIPE.runtime
    forever = (stage_steps(RECIPE.stages["stage1"]) - 1) // runtime.permanent_checkpoint_every_steps
    count = forever + runtime.keep_checkpoints + 3  # the first, the stage's end, one being written
    assert f"{count} of them in all: {count * size / 1e12:.1f} TB, of which {forever} are for ever" in text
    assert f"costs at most {RECIPE.runtime.checkpoint_every_steps:,} steps" in text


def test_the_pages_files_exist() -> None:
    for name in re.findall(r"(?:jobs|docs)/[a-z_/.-]+[a-z]", PAGE.read_text(), re.I):
        assert (ROOT / name).exists(), name


def test_the_parameter_table_of_the_network_adds_up_to_the_network() -> None:
    text = (ROOT / "docs" / "model.md").read_text()
    section = text[text.index("## 4. Parameters") : text.index("## 5. Operations")]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    *parts, whole = [int(cells[-1].strip(" *").replace(",", "")) for cells in rows]
    assert sum(parts) == whole == total_parameters(RECIPE.model)


@pytest.mark.parametrize("package", ["curriculum", "jobs", "ncp_model", "pipeline", "tests"])
def test_every_document_that_code_names_is_there(package: str) -> None:
    """And every section of the network's page."""
    sections = set(re.findall(r"^## ([\d.]+?)\.? ", (ROOT / "docs" / "model.md").read_text(), re.M))
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        for name in re.findall(r"docs/[\w./-]+\.md\b", text):
            assert (ROOT / name).exists(), f"{path}: {name}"
        for found in re.findall(r"docs/model\.md ([\d.]+(?:(?:, | - )[\d.]+)*)", text):
            for number in re.split(r", | - ", found):
                there = any(f"{section}.".startswith(f"{number.rstrip('.')}.") for section in sections)
                assert there, f"{path}: docs/model.md has no section {number}"
