"""Recipes and overrides: what is accepted, and how everything else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import build, bundled_recipes, load_recipe, plain
from curriculum.schema import Recipe


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_loads_and_survives_a_round_trip(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.recipe == name
    assert build(Recipe, plain(recipe), "") == recipe


def test_an_override_may_name_a_stage_directly() -> None:
    recipe = load_recipe("demo", ["stage2.optimizer.lr=0.001", "runtime.num_workers=1"])
    assert recipe.stages["stage2"].optimizer.lr == 0.001
    assert recipe.runtime.num_workers == 1
    assert load_recipe("demo", ["stages.stage2.optimizer.lr=0.001"]).stages["stage2"].optimizer.lr == 0.001


def test_a_number_of_workers_is_fixed_or_a_range() -> None:
    fixed, elastic = (load_recipe("demo", [f"runtime.num_workers={n}"]).runtime for n in ("3", "[2,8]"))
    assert (fixed.min_workers, fixed.max_workers) == (3, 3)
    assert (elastic.min_workers, elastic.max_workers) == (2, 8)


def test_a_model_preset_stands_for_its_fields_and_can_be_overridden(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "recipe: small",
            "sources: {stdlib-prose: {builtin: stdlib-prose}}",
            "tokenizer: {train: {vocab_size: 512}}",
            "model: {preset: tiny, decoder_layers: 3, concept: {entries: 8}}",
            "stages: {only: {mixture: {stdlib-prose: 1}, tokens: 4096, sequence_length: 256,"
            " global_batch_tokens: 1024, optimizer: {lr: 1e-3}}}",
        ]
    )
    path = tmp_path / "small.yaml"
    path.write_text(text)
    model = load_recipe(str(path)).model
    assert (model.hidden_size, model.decoder_layers, model.concept.entries, model.concept.segments) == (
        64,
        3,
        8,
        4,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage2.optimiser.lr=1", r"stages\.stage2\.optimiser: unknown key .* did you mean 'optimizer'"),
        ("runtme.num_workers=1", r"runtme: unknown key .* did you mean 'runtime'"),
        ("stage2.optimizer.lr", r"override 'stage2\.optimizer\.lr': not of the form key=value"),
        ("=3", r"override '=3': not of the form key=value"),
        ("stage1.tokens=many", r"stages\.stage1\.tokens: 'many' is not a whole number"),
        ("stage1.tokens=true", r"stages\.stage1\.tokens: True is not a whole number"),
        ("stage1.tokens=100", r"stages\.stage1\.tokens: 100 is less than one batch \(4096\)"),
        (
            "stage1.sequence_length=130",
            r"stages\.stage1\.sequence_length: 130 is not divisible by model\.concept\.chunk_size 4; use 128",
        ),
        (
            "stage1.global_batch_tokens=4100",
            r"stages\.stage1\.global_batch_tokens: 4100 is not a multiple of .* use 4096",
        ),
        ("stage1.sequence_length=512", r"exceeds model\.max_sequence_length 256"),
        (
            "stage1.mixture.stdlib-cod=1",
            r"stages\.stage1\.mixture\.stdlib-cod: no such source; did you mean 'stdlib-code'",
        ),
        (
            "stage1.mixture.stdlib-code=-1",
            r"stages\.stage1\.mixture\.stdlib-code: -1\.0 must be positive",
        ),
        ("stage1.init.from=stage2", r"stages\.stage1\.init\.from: 'stage2' is not an earlier stage"),
        ("stage2.schedule.kind=cosin", r"stages\.stage2\.schedule\.kind: 'cosin' is not one of .*'cosine'"),
        ("model.num_heads=5", r"model\.num_heads = 5: must divide hidden_size"),
        ("stage1.optimizer.lr=0", r"stages\.stage1\.optimizer\.lr: 0\.0 must be positive"),
        (
            "tokenizer.train.vocab_size=4096",
            r"tokenizer\.train\.vocab_size: 4096 is not model\.vocab_size 6144",
        ),
        ("runtime.num_workers=0", r"runtime\.num_workers: 0 must be at least 1"),
        ("runtime.num_workers=[4,2]", r"runtime\.num_workers: \[4, 2\] is not \[min, max\]"),
        ("runtime.num_workers=[2]", r"runtime\.num_workers: \[2\] has 1 entries, needs 2"),
        ("runtime.num_workers=many", r"runtime\.num_workers: 'many' is not a whole number"),
        ("runtime.shard_size=4", r"runtime\.shard_size: 4 does not divide runtime\.num_workers 2"),
        ("sources.x.builtin=nothing", r"sources\.x\.builtin: 'nothing' is not one of"),
    ],
)
def test_a_bad_override_is_one_line_with_the_key_the_value_and_the_fix(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe("demo", [override])
    assert "\n" not in str(caught.value)


def test_an_unknown_recipe_names_the_nearest_one() -> None:
    with pytest.raises(RecipeError, match="recipe 'demmo': unknown; did you mean 'demo'"):
        load_recipe("demmo")


def test_a_missing_file_and_broken_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(str(tmp_path / "no.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,")
    with pytest.raises(RecipeError, match="not YAML"):
        load_recipe(str(broken))


def test_a_missing_required_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("recipe: r\nsources: {a: {}}\nmodel: {}\ntokenizer: {name: dolma2, sha256: x}\n")
    with pytest.raises(RecipeError, match="stages: missing"):
        load_recipe(str(path))
