"""The bundled recipes of the real thing: exact steps, tokens and parameters, with no network."""

from __future__ import annotations

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from curriculum.tokens import stage_steps, tokens_before
from ncp_model.flops import total_parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("olmo3-7b-ncp", 8_938_363_793),
        ("olmo3-7b-vanilla-32", 7_298_011_136),
        ("olmo3-7b-vanilla-34", 7_702_794_240),
        ("olmo3-7b-vanilla-40", 8_917_143_552),
    ],
)
def test_models_have_their_published_sizes(name: str, parameters: int) -> None:
    assert total_parameters(load_recipe(name).model) == parameters


def test_olmo_3_takes_its_published_steps_and_tokens() -> None:
    recipe = load_recipe("olmo3-7b-vanilla-32")
    steps = {name: stage_steps(stage) for name, stage in recipe.stages.items()}
    assert steps == {"stage1": 1_413_814, "stage2": 47_684}
    second = recipe.stages["stage2"]
    assert tokens_before(recipe, "stage2") == 5_929_965_715_456
    total = tokens_before(recipe, "stage2") + stage_steps(second) * second.global_batch_tokens
    assert total == 6_029_966_311_424


def test_ncp_and_its_baseline_differ_in_model_optimizer_and_budget_only() -> None:
    ncp, vanilla = load_recipe("olmo3-7b-ncp"), load_recipe("olmo3-7b-vanilla-32")
    assert ncp.sources == vanilla.sources and ncp.tokenizer == vanilla.tokenizer and ncp.data == vanilla.data
    for name in ncp.stages:
        ours, theirs = ncp.stages[name], vanilla.stages[name]
        assert ours.mixture == theirs.mixture and ours.seed == theirs.seed
        assert ours.global_batch_tokens == theirs.global_batch_tokens


def test_the_shares_of_the_mixes_are_the_published_ones() -> None:
    recipe = load_recipe("olmo3-7b-ncp")
    first, second = (recipe.mixes[name] for name in ("dolma3_mix-6T", "dolma3_dolmino_mix-100B-1025"))
    assert first["dolma3-common-crawl"] / sum(first.values()) == pytest.approx(0.761, abs=1e-3)
    assert first["dolma3-stack-edu"] / sum(first.values()) == pytest.approx(0.0689, abs=1e-3)
    assert len(second) == 24 and sum(second.values()) == pytest.approx(99.95, abs=0.1)
    for name, share in {**first, **second}.items():
        assert recipe.sources[name].tokens == pytest.approx(share * 1e9)
    assert recipe.sources["dolmino-stack-edu-fim"].special_tokens == "keep"


def test_a_recipe_may_extend_another_and_a_circle_is_refused(tmp_path) -> None:
    (tmp_path / "base.yaml").write_text("extends: demo\nruntime: {num_workers: 7}\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nrecipe: top\n")
    recipe = load_recipe(str(tmp_path / "top.yaml"))
    assert (recipe.recipe, recipe.runtime.num_workers) == ("top", 7)
    (tmp_path / "base.yaml").write_text("extends: top.yaml\n")
    with pytest.raises(RecipeError, match="goes in a circle"):
        load_recipe(str(tmp_path / "top.yaml"))
