"""Where a published tokenizer comes from: an asset, a file, or a repository of the Hub. Its sha256 is what identifies it."""

from __future__ import annotations

from curriculum.errors import RecipeError
from jobs.assets import ASSETS, ensure_asset
from pipeline.storage import Storage


def read_tokenizer(name: str) -> bytes:
    """The tokenizer.json that `name` stands for: `dolma2`, a path or URL ending in .json, or a Hub id `org/name`.

    The Hub is asked through HF_ENDPOINT like everything else. Raises RecipeError naming the key and the fix.
    """
    if name in ASSETS:
        return ensure_asset(name).read_bytes()
    if name.endswith(".json"):
        folder, _, file = name.rpartition("/")
        place, key = Storage(folder or "."), file
    elif name.count("/") == 1:
        place, key = Storage(f"hf://{name}"), "tokenizer.json"
    else:
        raise RecipeError(
            f"tokenizer.name: {name!r} is no asset ({', '.join(sorted(ASSETS))}), no .json file and no Hub id org/name"
        )
    try:
        return place.read_bytes(key)
    except OSError as error:
        raise RecipeError(
            f"tokenizer.name: {place.uri(key)} cannot be read ({error}); check the path or id"
        ) from error
