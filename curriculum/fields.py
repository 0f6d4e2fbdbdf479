"""What a field of a recipe declares beside itself: its bounds, and the value at which identity does not know it.

    eos_token: str = declared("", absent_at="")
    lr: float = declared(above=0)

`absent_at` makes a switch that is added later cost nothing: at that value the field is left out of the canonical JSON, so
every fingerprint made before the field existed stays the same. Numbers are finite unless `finite=False` says otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from curriculum.errors import RecipeError

_UNSET: Any = object()
LARGEST = 2**63 - 1
"""Whole numbers beyond it fit in no file and no tensor."""


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
    fix: str | None = None,
) -> Any:
    """A dataclass field with bounds and, for an identity field added later, the value at which it is absent. `fix`: advice for a value beyond them."""
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata: dict[str, Any] = {name: value for name, value in bounds.items() if value is not None}
    if not finite:
        metadata["finite"] = False
    if fix is not None:
        metadata["fix"] = fix
    if absent_at is not _UNSET:
        metadata["absent_at"] = absent_at
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def absent(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether identity leaves the field out at `value`."""
    marker = field.metadata.get("absent_at", _UNSET)
    return marker is not _UNSET and value == marker


def out_of_bounds(field: dataclasses.Field[Any], value: Any) -> str | None:
    """What is wrong with a number, as the end of a sentence that names it; None when it may stand."""
    problem = _problem(field, value)
    fix = field.metadata.get("fix")
    return f"{problem}; {fix}" if problem is not None and fix is not None else problem


def _problem(field: dataclasses.Field[Any], value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if field.metadata.get("finite", True) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return "must fit in 64 bits"
    wanted = {
        "at_least": ("at least", lambda bound: value >= bound),
        "above": ("above", lambda bound: value > bound),
        "at_most": ("at most", lambda bound: value <= bound),
        "below": ("below", lambda bound: value < bound),
    }
    for name, (words, holds) in wanted.items():
        bound = field.metadata.get(name)
        if bound is not None and not holds(bound):
            if bound == 0 and name in ("above", "at_least"):
                return "must be positive" if name == "above" else "must not be negative"
            return f"must be {words} {bound:,}" if isinstance(bound, int) else f"must be {words} {bound:g}"
    return None


def numbers_of(value: Any, key: str) -> Iterator[tuple[str, int | float]]:
    """The numbers that a field holds, itself or in a list or a mapping, with their keys."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from numbers_of(item, f"{key}[{index}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from numbers_of(item, f"{key}.{name}")


def require_bounds(spec: Any, key: str) -> None:
    """Raise RecipeError for a number of a specification, or of one inside it, that is beyond its declared bounds."""
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        path = f"{key}.{yaml_name(field.name)}"
        if dataclasses.is_dataclass(value):
            require_bounds(value, path)
        for where, number in numbers_of(value, path):
            problem = out_of_bounds(field, number)
            if problem is not None:
                raise RecipeError(f"{where} = {number!r}: {problem}")


def yaml_name(field_name: str) -> str:
    """A field's name in a recipe: `from_` is written `from`."""
    return field_name.rstrip("_")
