"""Globs over relative paths, where `**/` means any number of directories, none included.

As in a shell, no wildcard stands for a `.` or `_` at the beginning of a name: `_temporary/`, `.hidden.jsonl` or
`__MACOSX/` belong to a source only if a glob writes that character itself, as in `_shards/*.jsonl`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from pipeline.data.errors import SourceError

_SHOWN = "(?![._])"


def select(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """The paths that any glob matches, sorted. `*` and `?` stay inside one directory."""
    return sorted(path for path in paths if any(matches(path, glob) for glob in globs))


def matches(path: str, glob: str, *, hidden: bool = False) -> bool:
    """Whether `glob` matches `path`, or is that very name; with `hidden` its wildcards stand for names in `.` and `_` too.

    Raises SourceError for a glob that has no meaning, such as `[z-a]`.
    """
    return path == glob or _pattern(glob, hidden).fullmatch(path) is not None


def named_by(path: str, globs: Sequence[str]) -> bool:
    """Whether a glob that matches `path` writes the end of its name, so that this kind of file was asked for.

    `data/*.txt` asks for text files; `data/**` and `shard*` take what there is.
    """
    return any(not glob.endswith(("*", "?", "]")) and matches(path, glob) for glob in globs)


@functools.lru_cache(maxsize=4096)
def _pattern(glob: str, hidden: bool) -> re.Pattern[str]:
    shown = "" if hidden else _SHOWN
    parts = [part for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob) if part]
    pattern, at_start = "", True
    for part in parts:
        guard = shown if at_start else ""
        if part == "**/":
            pattern += f"(?:{shown}[^/]+/)*" if at_start else f"(?:[^/]*/(?:{shown}[^/]+/)*)?"
        elif part == "**":
            pattern += f"{guard}[^/]*(?:/{shown}[^/]+)*"
        elif part == "*":
            pattern += f"{guard}[^/]*"
        elif part == "?":
            pattern += f"{guard}[^/]"
        elif part.startswith("["):
            pattern += guard + part.replace("[!", "[^")
        else:
            pattern += re.escape(part)
        at_start = part.endswith("/")
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise SourceError(f"globs: {glob!r} cannot be understood ({error}); write it without [...]") from None
