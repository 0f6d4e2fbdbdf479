"""Where a published tokenizer comes from: an asset, a file, or a repository of the Hub. Its sha256 is what identifies it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from curriculum.errors import RecipeError
from curriculum.schema import Recipe
from jobs.assets import ASSETS, ensure_asset, find_asset
from pipeline.storage import Storage, StorageUnavailable

if TYPE_CHECKING:
    from pipeline.data.tokenizer import Tokenizer


def read_tokenizer(name: str) -> bytes:
    """The tokenizer.json that `name` stands for: `dolma2`, a path or URL ending in .json, or a Hub id `org/name`.

    The Hub is asked through HF_ENDPOINT like everything else. Raises RecipeError naming the key and the fix.
    """
    if name in ASSETS:
        return ensure_asset(name).read_bytes()
    if name.endswith(".json"):
        return _read(name, "tokenizer.name")
    if name.count("/") == 1:
        return _read(f"hf://{name}/tokenizer.json", "tokenizer.name")
    raise RecipeError(
        f"tokenizer.name: {name!r} is no asset ({', '.join(sorted(ASSETS))}), no .json file and no Hub id org/name"
    )


def published_tokenizer(recipe: Recipe) -> Tokenizer:
    """The recipe's published tokenizer, read, proved, and compared with what the recipe says of it.

    Raises InputError naming the key: no such file, another sha256 (the one found is printed), an id beyond the model's
    embedding, or a file that `Tokenizer` refuses.
    """
    from pipeline.data.tokenizer import Tokenizer  # brings tokenizers

    spec = recipe.tokenizer
    if spec.file is not None:
        data = _read(spec.file, "tokenizer.file")
    else:
        assert spec.name is not None
        data = read_tokenizer(spec.name)
    called = spec.file or spec.name
    found = hashlib.sha256(data).hexdigest()
    if found != spec.sha256:
        raise RecipeError(
            f"tokenizer.sha256: {called} has {found}, the recipe says {spec.sha256}; use the published file or correct the recipe"
        )
    tokenizer = Tokenizer(data, spec.eos_token)
    if tokenizer.vocab_size > recipe.model.vocab_size:
        raise RecipeError(
            f"model.vocab_size: {recipe.model.vocab_size} holds ids up to {recipe.model.vocab_size - 1}, {called} has ids up "
            f"to {tokenizer.vocab_size - 1}; set it to at least {tokenizer.vocab_size}"
        )
    return tokenizer


def check_published_tokenizer(recipe: Recipe) -> None:
    """What a plan can know of a published tokenizer without fetching anything: files are read, assets if they are here.

    Raises InputError as `published_tokenizer` does.
    """
    spec = recipe.tokenizer
    if spec.train is not None:
        return
    name = spec.name or ""
    at_hand = (
        spec.file is not None or name.endswith(".json") or (name in ASSETS and find_asset(name) is not None)
    )
    if at_hand:
        published_tokenizer(recipe)
    elif name not in ASSETS and name.count("/") != 1:
        read_tokenizer(name)  # raises with the names there are


def _read(path: str, key: str) -> bytes:
    folder, _, file = path.rpartition("/")
    try:
        place = Storage(folder or ("/" if path.startswith("/") else "."))
        return place.read_bytes(file)
    except StorageUnavailable:
        raise
    except (OSError, ValueError) as error:
        raise RecipeError(f"{key}: {path} cannot be read ({error}); check the path or id") from error
