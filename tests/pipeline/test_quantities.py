from __future__ import annotations

import math

import pytest

from pipeline.quantities import MISSING, byte_size, duration, fixed, number, percent, si, utc_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, MISSING), (math.nan, MISSING), (math.inf, MISSING), (0, "0"), (3.14159, "3.14"), (0.00052, "0.000520"),
     (123456.0, "123,456"), (2e-7, "2e-7"), (-1.5, "-1.50"), (1.5e12, "1.5e12")],
)  # fmt: skip
def test_numbers_keep_their_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (1_234_567, "1.23M"),
        (999_999_999, "1B"),
        (5.93e12, "5.93T"),
        (None, MISSING),
    ],
)
def test_token_counts_are_short(value: float | None, text: str) -> None:
    assert si(value) == text


def test_durations_are_clocks() -> None:
    assert [duration(s) for s in (None, math.nan, 5, 75, 3700, 90_061)] == [
        MISSING, MISSING, "0:05", "1:15", "1:01:40", "1d 1:01:01",
    ]  # fmt: skip


def test_sizes_shares_and_times() -> None:
    assert [byte_size(b) for b in (None, 0, 512, 1200, 3.4e12)] == [
        MISSING,
        "0 B",
        "512 B",
        "1.2 kB",
        "3.4 TB",
    ]
    assert percent(0.123) == "12.3%" and percent(None) == MISSING
    assert fixed(1234.5, 2) == "1,234.50" and fixed(math.inf, 2) == MISSING
    assert utc_text(0) == "1970-01-01 00:00 UTC" and utc_text(None) == MISSING
