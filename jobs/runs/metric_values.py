"""A metric as JSON can say it: scalars of numpy and torch become Python's numbers, and what is no number is a null that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MARKER = "not_finite"
"""Column that names, with its word, every value of a row that is null because it was NaN or infinite."""


def plain_number(value: Any) -> Any:
    """`value` as a Python number if it is a scalar of another library, else as it is."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "size", None) is not None:
        count = value.numel() if hasattr(value, "numel") else value.size
        if count == 1:
            return item()
    return value


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a row for strict JSON. Those that are NaN or infinite become None and are named under MARKER:
    {"ntp": None, "not_finite": {"ntp": "nan"}}; so does what is no scalar, by its type: no column may cost the row."""
    result: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for name, value in values.items():
        number = plain_number(value)
        if isinstance(number, float) and not math.isfinite(number):
            result[name], lost[name] = None, str(number)
        elif number is None or isinstance(number, bool | int | float | str | list | dict):
            result[name] = number
        else:
            result[name], lost[name] = None, type(value).__name__
    return result | ({MARKER: lost} if lost else {})
