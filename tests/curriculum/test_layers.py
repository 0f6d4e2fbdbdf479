"""What replaces, what merges and what is removed when one recipe is laid over another, or an override over both."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from curriculum.schema import Recipe

STAGE = "{mixture: {stdlib-code: 1}, tokens: 8192, sequence_length: 256, global_batch_tokens: 4096, optimizer: {lr: 1e-3}}"


def _over_demo(tmp_path: Path, text: str, base: str = "demo") -> Recipe:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {base}\nrecipe: mine\n{text}\n")
    return load_recipe(str(path))


def test_a_mixture_given_whole_as_an_override_replaces_the_recipes() -> None:
    assert dict(load_recipe("demo", ["stage2.mixture={stdlib-code: 1}"]).stages["stage2"].mixture) == {
        "stdlib-code": 1.0
    }


def test_a_mixture_of_ones_own_replaces_the_parents(tmp_path: Path) -> None:
    recipe = _over_demo(tmp_path, "stages: {stage2: {mixture: {stdlib-code: 1}}}")
    assert dict(recipe.stages["stage2"].mixture) == {"stdlib-code": 1.0}
    assert list(recipe.stages) == ["stage1", "stage2"], "an incomplete stage is an edit"
    assert recipe.stages["stage2"].optimizer.lr == 2e-3


def test_stages_given_whole_replace_and_keep_their_order(tmp_path: Path) -> None:
    recipe = _over_demo(tmp_path, f"stages:\n  warm: {STAGE}\n  long: {STAGE}\n  after: {STAGE}")
    assert list(recipe.stages) == ["warm", "long", "after"]


def test_sources_and_locations_given_whole_replace(tmp_path: Path) -> None:
    recipe = _over_demo(
        tmp_path,
        f"sources: {{stdlib-code: {{builtin: stdlib-code}}, own: {{}}}}\nstages: {{only: {STAGE}}}\n"
        "tokenizer: {train: {sources: [own]}}\nruntime: {locations: {own: /data}}",
    )
    assert list(recipe.sources) == ["stdlib-code", "own"]
    assert dict(recipe.runtime.locations) == {"own": "/data"}


def test_null_removes_one_entry(tmp_path: Path) -> None:
    recipe = _over_demo(tmp_path, "stages: {stage2: null}")
    assert list(recipe.stages) == ["stage1"]
    recipe = load_recipe("demo", ["stage2.mixture.stdlib-prose=null"])
    assert list(recipe.stages["stage2"].mixture) == ["stdlib-code"]
    recipe = load_recipe(
        "demo",
        [
            "stage1.mixture.stdlib-prose=null",
            "stage2=null",
            "tokenizer.train.sources=[stdlib-code]",
            "sources.stdlib-prose=null",
        ],
    )
    assert list(recipe.sources) == ["stdlib-code"] and list(recipe.stages) == ["stage1"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage2.mixture.stdlib-proze=null", "nothing to remove; did you mean 'stdlib-prose'"),
        ("stage3=null", "stage3: unknown key"),
        ("~stage2", "an entry is removed with stage2=null"),
        ("stage1.evaluation.suites[0]=core", "is a list, which is given whole"),
    ],
)
def test_what_cannot_be_removed_or_edited_is_named(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [override])


def test_removing_what_the_parent_has_not_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"mine\.yaml:3: stages\.stage9: null removes an entry, and there is none"
    ):
        _over_demo(tmp_path, "stages: {stage9: null}")


def test_structures_still_merge(tmp_path: Path) -> None:
    recipe = _over_demo(
        tmp_path, "stages: {stage1: {optimizer: {weight_decay: 0.2}}}\nruntime: {num_workers: 1}"
    )
    assert (recipe.stages["stage1"].optimizer.lr, recipe.stages["stage1"].optimizer.weight_decay) == (
        4e-3,
        0.2,
    )
    assert (recipe.runtime.num_workers, recipe.runtime.micro_batch_size) == (1, 8)


def test_a_dotted_key_in_a_file_edits_one_entry(tmp_path: Path) -> None:
    recipe = _over_demo(
        tmp_path,
        "stages.stage2.mixture.stdlib-code: 3\nsources.extra: {tokens: 5}\nruntime: {locations.extra: /data}",
    )
    assert dict(recipe.stages["stage2"].mixture) == {"stdlib-prose": 0.3, "stdlib-code": 3.0}
    assert list(recipe.sources) == ["stdlib-prose", "stdlib-code", "extra"]


def test_an_entry_of_a_named_mix_can_be_edited_where_it_is_used() -> None:
    recipe = load_recipe("olmo3-7b-ncp", ["stage1.mixture.dolma3-arxiv=100"])
    assert recipe.stages["stage1"].mixture["dolma3-arxiv"] == 100.0
    assert recipe.stages["stage1"].mixture["dolma3-finemath"] == 152.0
    assert recipe.mixes["dolma3_mix-6T"]["dolma3-arxiv"] == 50.8


def test_recipes_extended_side_by_side_are_united_but_for_their_mixtures(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text("sources: {a: {}}\nstages: {stage2: {mixture: {stdlib-code: 1}}}\n")
    recipe = _over_demo(tmp_path, "", base="[demo, mix.yaml]")
    assert list(recipe.sources) == ["stdlib-prose", "stdlib-code", "a"]
    assert dict(recipe.stages["stage2"].mixture) == {"stdlib-code": 1.0}


def test_settings_of_a_filter_given_whole_replace_and_may_be_null() -> None:
    clean = (
        "sources.stdlib-code.clean={filters: [gopher_quality, c4], settings: {c4: {min_num_sentences: 2}}}"
    )
    settings = "sources.stdlib-code.clean.settings={gopher_quality: {min_stop_words: null, min_doc_words: 3}}"
    spec = load_recipe("demo", [clean, settings]).sources["stdlib-code"].clean
    assert spec is not None
    assert spec.settings == {"gopher_quality": {"min_stop_words": None, "min_doc_words": 3}}


def test_a_preset_stands_for_every_field_of_the_model_it_is_laid_over(tmp_path: Path) -> None:
    text = "model: {preset: tiny, vocab_size: 6144}\nstages: {stage1: {sequence_length: 256}}"
    assert _over_demo(tmp_path, text).model.hidden_size == 64
    assert load_recipe("demo", ["model.preset=tiny", "model.vocab_size=6144"]).model.hidden_size == 64


_NAMES = st.lists(
    st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,6}", fullmatch=True), min_size=1, max_size=5, unique=True
)


@given(_NAMES)
def test_names_of_stages_keep_their_order_whatever_they_are(names: list[str]) -> None:
    known = {"recipe", "data", "model", "mixes", "ladder", "runtime", "stages", "sources"}
    names = [f"s{name}" if name in known else name for name in names]
    stages = ", ".join(f"'{name}': {STAGE}" for name in names)
    assert list(load_recipe("demo", [f"stages={{{stages}}}"]).stages) == names


@given(_NAMES)
def test_a_mixture_given_whole_is_exactly_what_was_given(names: list[str]) -> None:
    sources = ", ".join(f"'{name}': {{}}" for name in names)
    mixture = ", ".join(f"'{name}': {index + 1}" for index, name in enumerate(names))
    recipe = load_recipe(
        "demo",
        [
            f"sources={{stdlib-prose: {{builtin: stdlib-prose}}, stdlib-code: {{builtin: stdlib-code}}, {sources}}}",
            f"stage2.mixture={{{mixture}}}",
        ],
    )
    assert dict(recipe.stages["stage2"].mixture) == {name: index + 1.0 for index, name in enumerate(names)}
