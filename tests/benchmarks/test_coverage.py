"""Printed intervals hold the truth about as often as they say; `make bench` simulates it at length."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_coverage import Case, coverage, held_out, one_pair, over_seeds, scaling

CASES = {
    "three seeds": over_seeds(3),
    "one pair of 200 noisy steps": one_pair(200, 0.03, 1 / 0.513, 0.0, 0.5),
    "three budgets": scaling(3, 0.003),
    "five documents": held_out(5),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_nominal_95_percent_is_one(case: Case) -> None:
    held, _, _, none = coverage(case, 600)
    assert 0.9 <= held <= 0.985 and none == 0
