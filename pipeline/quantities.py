"""How quantities are written, one form each: on the terminal, in logs, on pages. What is not known is MISSING."""

from __future__ import annotations

import math
import time

MISSING = "-"


def duration(seconds: float | None) -> str:
    """`0:46`, `12:03`, `5:21:40`, `3d 4:00:00`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days}d {clock}" if days else clock


def utc_text(at: float | None) -> str:
    """Seconds since the epoch as `2026-12-01 12:05 UTC`."""
    return MISSING if at is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def byte_size(count: float | None) -> str:
    """`512 B`, `1.2 MB`, `3.4 TB`: powers of 1000."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, without an exponent where that stays short."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude >= 9:
        mantissa, exponent = f"{value:.{max(digits - 1, 0)}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    return f"{value:,.{max(digits - 1 - magnitude, 0)}f}"


def fixed(value: float | None, decimals: int) -> str:
    """Fixed decimals, for columns whose digits should line up."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}"


def si(value: float | None, digits: int = 3) -> str:
    """1_234_567 -> 1.23M. Steps of a thousand: k, M, B, T (a billion tokens is a B in this field)."""
    if value is None or not math.isfinite(value):
        return MISSING
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            scaled = f"{value / size:.{digits}g}"
            return f"{scaled if 'e' not in scaled else f'{value / size:.0f}'}{suffix}"
    return f"{value:.{digits}g}"


def percent(share: float | None, decimals: int = 1) -> str:
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.{decimals}f}%"
