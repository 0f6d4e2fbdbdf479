"""What a piece of written text means where the schema asks for a number, a switch or text.

Decimal digits only: `007`, `0x10`, `12:30` and the like mean different things to different readers, so where a number is
wanted they are refused, and where text is wanted they stay text.
"""

from __future__ import annotations

import re
from typing import Any

from curriculum.recipe_text import Written, shorten

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)?(\.[0-9]*)?([eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = {".inf": "inf", "inf": "inf", ".nan": "nan", "nan": "nan"}
_NULL = ("", "~", "null", "Null", "NULL")
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LOOKS_LIKE_A_NUMBER = re.compile(r"[-+]?[0-9][0-9_:.xXa-fA-F-]*([T ][0-9:.Z+-]*)?")
_LONGEST = 400
"""Characters of a number."""


def is_null(value: Any) -> bool:
    """Whether nothing was given: no text, `null` or `~` without quotes."""
    return value is None or (isinstance(value, Written) and value in _NULL)


def whole_number(text: Written) -> int | None:
    """`4096`, `1_000`, `5.0e12`; None for what is no whole number in decimal digits."""
    if len(text) > _LONGEST:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    number = decimal_number(text)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**63 else None


def decimal_number(text: Written) -> float | None:
    """`3`, `0.1`, `1e-3`, `.inf`; None for what is no number."""
    if len(text) > _LONGEST:
        return None
    sign = text[:1] if text[:1] in ("-", "+") else ""
    if text[len(sign) :].lower() in _NOT_FINITE:
        return float(sign + _NOT_FINITE[text[len(sign) :].lower()])
    found = _NUMBER.fullmatch(text)
    return float(text) if found and (found[1] or (found[2] and found[2] != ".")) else None


def switch(text: Written) -> bool | None:
    return _SWITCHES.get(text.lower())


def untyped(value: Any) -> Any:
    """A value that no type is declared for. Raises ValueError for text that could mean two things without quotes."""
    if not isinstance(value, Written):
        return value
    if is_null(value):
        return None
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for reading in (_WHOLE.fullmatch(value) and whole_number(value), decimal_number(value)):
        if reading is not None:
            return reading
    if value.lower() in _SWITCHES:
        raise ValueError(
            f"{str(value)!r} could be text or a switch; write true or false, or put it in quotes"
        )
    if _LOOKS_LIKE_A_NUMBER.fullmatch(value):
        raise ValueError(
            f"{shorten(value)!r} could be text or a number; write decimal digits, or put it in quotes"
        )
    return str(value)


def shown(value: Any) -> str:
    """A value in an error: numbers and switches as such, everything else as text that was written."""
    return shorten(repr(_plain(value)), 120)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Written):
        try:
            return untyped(value)
        except ValueError:
            return str(value)
    return value
