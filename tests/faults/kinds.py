"""Kinds of faults: what each is, how many other places it was found in, and the tests that hold its rows.

A kind is named by one word in the table. `tests` are patterns of node ids below `tests/` (fnmatch); everything in
`tests/faults/` that no kind claims is of the kind `process`: real signals on real processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    meaning: str
    elsewhere: int
    """Places beside the ones first seen where the same kind was found, and mended."""
    tests: tuple[str, ...]


PROCESS = "process"
KINDS: tuple[Kind, ...] = ()
