"""The results table of the fault matrix: `pytest -p tests.faults.record` writes docs/faults.md and goes on where it was.

What passed with the very same code (the trees of the code folders, and no uncommitted change in them) is not run again;
its row keeps the time it took then. A row that was skipped or failed is run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
CODE = ("curriculum", "jobs", "ncp_model", "pipeline", "tests")
RESULTS = ROOT / "build" / "faults"
TABLE = ROOT / "docs" / "faults.md"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


class FaultRecord:
    """Rows of the code as it stands."""

    def __init__(self) -> None:
        trees = _git("rev-parse", *(f"HEAD:{folder}" for folder in CODE))
        changes = _git("status", "--porcelain", "--", *CODE) and _git("diff", "HEAD", "--", *CODE)
        self.commit = _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changes else "")
        self.file = RESULTS / f"{hashlib.sha256((trees + changes).encode()).hexdigest()[:16]}.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["test"]: row for row in map(json.loads, lines)}

    def add(self, test: str, fault: str, outcome: str, seconds: float, why: str) -> None:
        row = {
            "test": test,
            "fault": fault,
            "outcome": outcome,
            "seconds": round(seconds, 1),
            "why": why,
            "commit": self.commit,
            "at": time.time(),
        }
        self.rows[test] = row
        RESULTS.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a") as file:
            file.write(json.dumps(row) + "\n")

    def passed(self, test: str) -> bool:
        return self.rows.get(test, {}).get("outcome") == "passed"

    def write_table(self) -> None:
        counts = ", ".join(
            f"{sum(row['outcome'] == outcome for row in self.rows.values())} {outcome}"
            for outcome in ("passed", "failed", "skipped")
        )
        lines = [
            "# Faults",
            "",
            "What `make faults` did to real processes with real signals, and how it ended. Written by the command.",
            f"{counts}, Python {platform.python_version()}, {os.cpu_count()} cores.",
            "",
            *_table(self.rows.values()),
        ]
        if older := self._older():
            lines += ["", "Last run on code that has changed since:", "", *_table(older)]
        TABLE.write_text("\n".join(lines) + "\n")

    def _older(self) -> list[dict[str, Any]]:
        """The newest row of each test that was not run on the code as it stands."""
        lines = [line for file in RESULTS.glob("*.jsonl") for line in file.read_text().splitlines()]
        rows = sorted(map(json.loads, lines), key=lambda row: row["at"])
        newest = {row["test"]: row for row in rows}
        return [row for test, row in newest.items() if test not in self.rows]


def _table(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = ["| fault | test | outcome | seconds | commit |", "|---|---|---|---:|---|"]
    for row in sorted(rows, key=lambda row: row["test"]):
        outcome = row["outcome"] + (f": {row['why']}" if row["why"] else "")
        where = row["test"].partition("::")[0].rpartition("/")[2]
        lines.append(f"| {row['fault']} | {where} | {outcome} | {row['seconds']} | {row['commit']} |")
    return lines


RECORD = FaultRecord()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = [item for item in items if RECORD.passed(item.nodeid)]
    if done:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if not RECORD.passed(item.nodeid)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's own part counts; its setup only when that is where it ended."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        why = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
        RECORD.add(report.nodeid, _fault(report.nodeid), report.outcome, report.duration, why)
        RECORD.write_table()


def pytest_sessionfinish() -> None:
    RECORD.write_table()


def _fault(nodeid: str) -> str:
    """`test_a_killed_driver_loses_nothing[x]` -> `a killed driver loses nothing: x`."""
    name, _, case = nodeid.rpartition("::")[2].removeprefix("test_").partition("[")
    case = case.removesuffix("]").replace("|", "/")
    return name.replace("_", " ") + (f": `{case}`" if case else "")
