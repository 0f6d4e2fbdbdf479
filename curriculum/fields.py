"""What a field of a recipe declares beside itself: its bounds, and the value at which identity does not know it.

    eos_token: str = declared("", absent_at="")
    lr: float = declared(above=0)

`absent_at` makes a switch that is added later cost nothing: at that value the field is left out of the canonical JSON, so
every fingerprint made before the field existed stays the same. Numbers are finite unless `finite=False` says otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

_UNSET: Any = object()


def declared(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Callable[[], Any] | Any = dataclasses.MISSING,
    absent_at: Any = _UNSET,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    finite: bool = True,
) -> Any:
    """A dataclass field with bounds and, for an identity field added later, the value at which it is absent."""
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {name: value for name, value in bounds.items() if value is not None}
    if not finite:
        metadata["finite"] = False
    if absent_at is not _UNSET:
        metadata["absent_at"] = absent_at
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def absent(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether identity leaves the field out at `value`."""
    marker = field.metadata.get("absent_at", _UNSET)
    return marker is not _UNSET and value == marker


def out_of_bounds(field: dataclasses.Field[Any], value: Any) -> str | None:
    """What is wrong with a number, as the end of a sentence that names it; None when it may stand."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if field.metadata.get("finite", True) and not math.isfinite(value):
        return "must be a finite number"
    wanted = {
        "at_least": ("at least", lambda bound: value >= bound),
        "above": ("above", lambda bound: value > bound),
        "at_most": ("at most", lambda bound: value <= bound),
        "below": ("below", lambda bound: value < bound),
    }
    for name, (words, holds) in wanted.items():
        bound = field.metadata.get(name)
        if bound is not None and not holds(bound):
            return f"must be {words} {bound:g}"
    return None


def yaml_name(field_name: str) -> str:
    """A field's name in a recipe: `from_` is written `from`."""
    return field_name.rstrip("_")
