"""The next number of a folder, for exactly one of all who ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.storage import Storage


def claim_number(storage: Storage, key: Callable[[int], str], record: Any, *, first: int = 1) -> int:
    """The lowest number from `first` whose record is not there yet; it is written by this call, exclusively."""
    number = first
    while not storage.create_json(key(number), record):
        number += 1
    return number
