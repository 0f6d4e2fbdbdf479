"""What the user can put right, as against a bug: one base class for all packages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used. One line: what, where, and the fix. Never retried, never a traceback."""


class RecipeError(InputError):
    """A recipe or override that cannot be run. One line: the key, the value and the fix."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something close to `name` is known, else the known names."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
