"""`ncp plan` on damaged recipes: a plan or one line, exit 0 or 2, never a traceback, never seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from jobs import cli
from jobs.exit_codes import DONE, USAGE
from tests.jobs.plan.recipe_mutations import mutated_recipe

SECONDS = 5.0
"""Of processor time, for one plan."""
CASES = 3000
SAMPLE = 60


def _plan(recipe: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["ncp", "plan", str(recipe), "--storage", str(storage), "--json"])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return DONE


def _check(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    codes = set()
    for seed in seeds:
        recipe = tmp_path / f"mutant-{seed}.yaml"
        recipe.write_bytes(mutated_recipe(seed))
        began = time.process_time()
        code = _plan(recipe, tmp_path / "store", monkeypatch)
        took = time.process_time() - began
        shown = capsys.readouterr()
        assert code in (DONE, USAGE), f"seed {seed}: exit {code}: {shown.err}"
        assert took < SECONDS, f"seed {seed}: {took:.1f} s"
        if code == USAGE:
            assert shown.err.startswith("error: ") and shown.err.count("\n") == 1, f"seed {seed}: {shown.err}"
            assert len(shown.err) < 1500, f"seed {seed}: {len(shown.err)} characters"
        else:
            assert shown.out.startswith("{") and "NaN" not in shown.out and "Infinity" not in shown.out, (
                f"seed {seed}"
            )
        codes.add(code)
        recipe.unlink()
    assert codes == {DONE, USAGE}, "some mutants still plan"
    assert not (tmp_path / "store").exists(), "a plan writes nothing"


def test_a_sample_of_damaged_recipes_is_planned_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _check(range(SAMPLE), tmp_path, monkeypatch, capsys)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_three_thousand_damaged_recipes_are_planned_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _check(range(CASES), tmp_path, monkeypatch, capsys)
