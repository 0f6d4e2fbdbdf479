"""A datatrove folder whose own path is never part of a pattern: a store below `lr[1]/` is deduplicated like any other."""

from __future__ import annotations

import re
from typing import Any

from datatrove.io import DataFolder
from fsspec.utils import glob_translate

from pipeline.storage import Storage


class LiteralFolder(DataFolder):
    """datatrove asks it for `*.dups`; plain fsspec would put the path before that, and find nothing."""

    def glob(self, path: str, **kwargs: Any) -> Any:
        wanted = re.compile(glob_translate(path))
        listed: Any = self.find("", detail=True)
        found = {name: info for name, info in listed.items() if wanted.match(name)}
        return found if kwargs.get("detail") else list(found)


def literal_folder(storage: Storage, key: str) -> LiteralFolder:
    """The folder `key` of `storage`."""
    return LiteralFolder(storage.path(key), storage.fs)
