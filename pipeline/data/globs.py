"""Globs over relative paths, where `**/` means any number of directories, none included."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def select(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """The paths that any glob matches, sorted. `*` and `?` stay inside one directory."""
    patterns = [re.compile(_translate(glob)) for glob in globs]
    return sorted(path for path in paths if any(pattern.fullmatch(path) for pattern in patterns))


def _translate(glob: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        special.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part))
        for part in parts
    )
