"""What can be evaluated: the lines of `ncp eval --list`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobs.evaluation.readers import EvaluationDataError, load_requests
from jobs.evaluation.suites import suite_tasks


@dataclass(frozen=True, kw_only=True)
class CatalogueLine:
    """One task of a suite."""

    family: str
    task: str
    metric: str
    shots: int
    questions: int | None
    """None for a task of one's own whose data is not at hand."""


@cache
def published_questions() -> dict[str, int]:
    """Questions at each location of the published package; its version is pinned (`jobs.assets`), so they are known
    before it is fetched."""
    with (Path(__file__).parent / "published_questions.csv").open(encoding="utf-8") as file:
        return {row["location"]: int(row["questions"]) for row in csv.DictReader(file)}


def count_questions(data: Path, location: str) -> int:
    """Questions at `location` below a directory of one's own. Raises EvaluationDataError."""
    return len({request.group for request in load_requests(data, location, gold_only=True)})


def catalogue(suite: str, data: Path | None = None) -> list[CatalogueLine]:
    """The tasks of a suite (or one task by its label), family by family, with the questions below `data`, or those of the
    published package. Raises SuiteError, EvaluationDataError."""
    if data is not None and not data.is_dir():
        raise EvaluationDataError(f"evaluation data {str(data)!r}: no directory")
    lines = []
    for task in suite_tasks(suite):
        if data is not None:
            questions: int | None = count_questions(data, task.location)
        else:
            questions = published_questions().get(task.location)
        lines.append(
            CatalogueLine(
                family=task.family, task=task.label, metric=task.metric, shots=task.shots, questions=questions
            )
        )
    return lines
