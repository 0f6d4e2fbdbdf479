"""Fingerprints of the bundled recipes, pinned: whoever changes one changes what every stored output is called.

A schema field added later must be left out of the identity at its legacy default; a step whose result changes gets a
new `version`. When a change is meant, run this file as a script and paste what it prints.
"""

from __future__ import annotations

import hashlib

import pytest

from curriculum.load import bundled_recipes, load_recipe
from jobs.graph import build_graph, tokenizer_sources, used_sources

GOLDEN = {
    "demo": {"stage1": "ccbb0889c2da", "stage2": "a064e0064fea"},
    "ladder-cpu": {"stage1": "9215e31159b9", "stage2": "668fe9c5f3df"},
    "ladder-olmo3": {"stage1": "419f957fc1a7", "stage2": "60a78ace6493"},
    "olmo3-7b-ncp": {"stage1": "fe55d1541d35", "stage2": "9cd3fdcbc2b5"},
    "olmo3-7b-vanilla-32": {"stage1": "729e417329a5", "stage2": "679212c3a581"},
    "olmo3-7b-vanilla-34": {"stage1": "05e022b08211", "stage2": "66fdfb93157a"},
    "olmo3-7b-vanilla-40": {"stage1": "ec84fe68afc5", "stage2": "e163a8fb0370"},
    "study-equal-compute": {"stage1": "347736e72f83"},
    "study-equal-parameters": {"stage1": "74ccd1b171eb"},
    "study-ncp": {"stage1": "78228b46a5dc"},
    "study-vanilla": {"stage1": "4089240fe149"},
    "study-words-equal-compute": {"stage1": "27280ab6799e"},
    "study-words-equal-parameters": {"stage1": "84cf72708189"},
    "study-words-ncp": {"stage1": "f68ab5cd9463"},
    "study-words-vanilla": {"stage1": "86e8641fc891"},
}


def trajectory_fingerprints(name: str) -> dict[str, str]:
    """Stage -> the first 12 digits, with every source pinned to a made-up content."""
    recipe = load_recipe(name)
    extra = tokenizer_sources(recipe) if recipe.tokenizer.train is not None else ()
    pins = {source: hashlib.sha256(source.encode()).hexdigest() for source in (*used_sources(recipe), *extra)}
    return {step.name: step.fingerprint[:12] for step in build_graph(recipe, pins) if step.kind == "stage"}


@pytest.mark.parametrize("name", bundled_recipes())
def test_a_recipe_names_the_same_trajectories_as_ever(name: str) -> None:
    assert trajectory_fingerprints(name) == GOLDEN[name]


if __name__ == "__main__":
    for recipe_name in bundled_recipes():
        print(f"    {recipe_name!r}: {trajectory_fingerprints(recipe_name)!r},")
