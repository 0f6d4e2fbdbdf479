"""Published tokenizers: by file, by Hub id through a loopback server's address, and what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from curriculum.errors import InputError, RecipeError
from curriculum.load import build, load_recipe, plain
from curriculum.schema import CleaningSpec, Recipe
from curriculum.validate import validate
from jobs.plan.planned import plan_recipe
from jobs.tokenizer_source import read_tokenizer
from pipeline.data.tokenizer import train_bpe
from pipeline.storage import Storage
from tests.hub_server import Hub, serving
from tests.ncp_process import SMALL


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(b"{}")
    assert read_tokenizer(str(tmp_path / "mine.json")) == b"{}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dolma3", "'dolma3' is no asset .*dolma2.*, no .json file and no Hub id"),
        ("/nowhere/at/all.json", "cannot be read"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_tokenizer(name)


def test_a_hub_id_is_read_from_its_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_bpe(["some words to merge, some words to keep"], 300)
    hub = Hub("allenai/dolma3-tokenizer", kind="models")
    hub.files["tokenizer.json"] = tokenizer
    with serving(hub, monkeypatch):
        assert read_tokenizer("allenai/dolma3-tokenizer") == tokenizer
        with pytest.raises(RecipeError, match=r"tokenizer\.name: hf://allenai/none.* cannot be read"):
            read_tokenizer("allenai/none")


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, bytes]:
    data = train_bpe(["some words to merge, some words to keep"], 300)
    path = tmp_path / "files" / "tokenizer.json"
    path.parent.mkdir()
    path.write_bytes(data)
    return path, data


def _recipe(path: Path, **changes: object) -> Recipe:
    plain_recipe = plain(load_recipe(SMALL))
    plain_recipe["tokenizer"] = {"file": str(path), "sha256": "0" * 64, **changes}
    return build(Recipe, plain_recipe, "")


def test_a_file_with_its_hash_is_accepted_by_plan_and_moves_no_identity(
    published: tuple[Path, bytes], tmp_path: Path
) -> None:
    path, data = published
    other = tmp_path / "elsewhere.json"
    other.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    storage = Storage(str(tmp_path / "store"))
    here, there = (plan_recipe(storage, _recipe(place, sha256=sha256))[0] for place in (path, other))
    assert here.steps[0].fingerprint == there.steps[0].fingerprint
    named = _recipe(path, sha256=sha256, eos_token="<|pad|>")
    assert plan_recipe(storage, named)[0].steps[0].fingerprint != here.steps[0].fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"tokenizer\.sha256: .*tokenizer\.json has FOUND, the recipe says 0000"),
        ({"file": "/nowhere/tokenizer.json"}, r"tokenizer\.file: /nowhere/tokenizer\.json cannot be read"),
        ({"sha256": "FOUND", "eos_token": "</s>"}, r"tokenizer\.eos_token: it has no '</s>'"),
        ({"name": "dolma2"}, r"tokenizer: give exactly one of .* there is name and file"),
        ({"sha256": None}, r"tokenizer\.sha256: missing for '.*tokenizer\.json'"),
    ],
)
def test_what_is_wrong_with_a_file_is_refused_by_plan(
    published: tuple[Path, bytes], tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path, data = published
    found = hashlib.sha256(data).hexdigest()
    changes = {key: found if value == "FOUND" else value for key, value in changes.items()}
    with pytest.raises(InputError, match=message.replace("FOUND", found)):
        recipe = _recipe(path, **changes)
        validate(recipe)
        plan_recipe(Storage(str(tmp_path / "store")), recipe)
    assert not (tmp_path / "store").exists()


def test_an_id_beyond_the_models_embedding_is_refused_by_plan_though_the_entries_would_fit(
    published: tuple[Path, bytes], tmp_path: Path
) -> None:
    """A tokenizer with a hole: 300 entries, the last of them far up."""
    path, data = published
    config = json.loads(data)
    vocabulary = config["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] = 90_000
    holed = json.dumps(config).encode()
    path.write_bytes(holed)
    with pytest.raises(
        RecipeError, match=r"model\.vocab_size: .* has ids up to 90000; set it to at least 90001"
    ):
        plan_recipe(Storage(str(tmp_path / "store")), _recipe(path, sha256=hashlib.sha256(holed).hexdigest()))


def test_the_settings_of_a_filter_are_checked_by_plan(tmp_path: Path) -> None:
    recipe = load_recipe("demo")
    clean = CleaningSpec(filters=("c4",), settings={"c4": {"min_sentences": 3}})
    sources = {name: replace(source, clean=clean) for name, source in recipe.sources.items()}
    with pytest.raises(InputError, match=r"clean\.settings\.c4\.min_sentences: c4 has no such setting"):
        plan_recipe(Storage(str(tmp_path / "store")), replace(recipe, sources=sources))
