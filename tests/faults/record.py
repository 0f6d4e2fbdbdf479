"""The table of faults: `pytest -p tests.faults.record` runs what is not proved at the code as it stands and writes docs/faults.md.

The table is its own memory: a row names the commit its test passed at, and stays true while nothing that matters to the
test has changed since (`paths_that_matter`). So `make faults` goes on where it was, in any clone.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests.faults.kinds import KINDS, PROCESS, PROCESS_TESTS

ROOT = Path(__file__).parent.parent.parent
TABLE = ROOT / "docs" / "faults.md"
CODE = ("curriculum", "jobs", "ncp_model", "pipeline")
BELOW = {"tests/curriculum/": ("curriculum",), "tests/pipeline/": ("curriculum", "pipeline")}
BELOW["tests/ncp_model/"] = ("curriculum", "ncp_model")
"""Packages whose tests cannot depend on what lies above them (tests/test_import_direction.py)."""
HEADER = ("kind", "fault", "test", "outcome", "seconds", "commit")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A test of the table. `test` is its file below tests/, `fault` its name in words; together they are unique."""

    kind: str
    fault: str
    test: str
    outcome: str
    seconds: str
    commit: str

    @property
    def key(self) -> tuple[str, str]:
        return self.test, self.fault


def kind_of(nodeid: str) -> str | None:
    """The kind that claims a test; None for a test that is no row of the table."""
    name = nodeid.removeprefix("tests/")
    for kind in KINDS:
        if any(fnmatchcase(name.partition("[")[0], pattern) for pattern in kind.tests):
            return kind.name
    return PROCESS if any(fnmatchcase(name.partition("[")[0], pattern) for pattern in PROCESS_TESTS) else None


def fault_of(nodeid: str) -> str:
    """`test_a_killed_driver_loses_nothing[x]` -> "a killed driver loses nothing: `x`"."""
    name, _, case = nodeid.rpartition("::")[2].removeprefix("test_").partition("[")
    case = case.removesuffix("]").replace("|", "/").replace("`", "'")
    return name.replace("_", " ") + (f": `{case}`" if case else "")


def paths_that_matter(test: str) -> tuple[str, ...]:
    """What may not have changed since a row's commit: the code that its test can reach, and its own file."""
    own = f"tests/{test}"
    code = next((code for folder, code in BELOW.items() if own.startswith(folder)), CODE)
    return (*code, own)


def read_table(text: str) -> list[Row]:
    """The rows of a table as `write_table` writes it; other lines are passed over."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == len(HEADER) and tuple(cells) != HEADER:
            rows.append(Row(**dict(zip(HEADER, cells, strict=True))))
    return rows


def write_table(rows: list[Row], stale: set[tuple[str, str]]) -> str:
    """The page. A row whose code changed since says so."""
    shown = [
        replace(row, outcome=f"{row.outcome}, not at this code") if row.key in stale else row for row in rows
    ]
    counts = {
        outcome: sum(row.outcome == outcome for row in shown) for outcome in ("passed", "failed", "skipped")
    }
    lines = [
        "# Faults",
        "",
        "What was done to real processes, files, services and numbers, and how it ended. Written by `make faults`, which runs",
        "again only what something that matters to it has changed for.",
        "",
        f"{', '.join(f'{count} {outcome}' for outcome, count in counts.items())}, {len(stale)} not at this code; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| kind | what it is | other places found |",
        "|---|---|---:|",
        *(
            f"| {kind.name} | {kind.meaning} | {'' if kind.elsewhere is None else kind.elsewhere} |"
            for kind in KINDS
        ),
        f"| {PROCESS} | real signals on real processes | |",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---|---|---|---|---:|---|",
    ]
    order = {kind.name: index for index, kind in enumerate(KINDS)}
    for row in sorted(shown, key=lambda row: (order.get(row.kind, len(order)), row.test, row.fault)):
        lines.append(f"| {' | '.join(getattr(row, name) for name in HEADER)} |")
    return "\n".join(lines) + "\n"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


@cache
def _unchanged(commit: str, paths: tuple[str, ...]) -> bool:
    return _git("diff", "--quiet", commit, "--", *paths).returncode == 0


def _exists(row: Row) -> bool:
    """Whether the test is still there: a row of one that was renamed proves nothing."""
    file = ROOT / "tests" / row.test
    name = row.fault.partition(": `")[0].replace(" ", "_")
    return file.exists() and f"def test_{name}(" in file.read_text()


class FaultTable:
    """The rows on disk, and what a session adds to them."""

    def __init__(self) -> None:
        rows = read_table(TABLE.read_text()) if TABLE.exists() else []
        self.rows = {
            row.key: replace(row, outcome=row.outcome.removesuffix(", not at this code")) for row in rows
        }
        changed = _git("status", "--porcelain", "--", *CODE, "tests").stdout
        self.commit = _git("rev-parse", "--short=12", "HEAD").stdout.strip() + (
            " with changes" if changed else ""
        )

    def current(self, key: tuple[str, str]) -> bool:
        """Whether the test passed and nothing that matters to it has changed since."""
        row = self.rows.get(key)
        return (
            row is not None
            and row.outcome == "passed"
            and _unchanged(row.commit, paths_that_matter(row.test))
        )

    def write(self) -> None:
        rows = [row for row in self.rows.values() if _exists(row)]
        stale = {row.key for row in rows if not _unchanged(row.commit, paths_that_matter(row.test))}
        TABLE.write_text(write_table(rows, stale))


TABLE_NOW = FaultTable()


def _key(nodeid: str) -> tuple[str, str]:
    return nodeid.partition("::")[0].removeprefix("tests/"), fault_of(nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_the_table = [item for item in items if kind_of(item.nodeid) is not None]
    wanted = [item for item in of_the_table if not TABLE_NOW.current(_key(item.nodeid))]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's own part counts; its setup only when that is where it ended."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        why = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = ": " + report.longrepr[2].removeprefix("Skipped: ")
        kind = kind_of(report.nodeid)
        if kind is None:
            return
        test, fault = _key(report.nodeid)
        TABLE_NOW.rows[test, fault] = Row(
            kind=kind,
            fault=fault,
            test=test,
            outcome=report.outcome + why,
            seconds=f"{report.duration:.1f}",
            commit=TABLE_NOW.commit,
        )
        TABLE_NOW.write()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        TABLE_NOW.write()
