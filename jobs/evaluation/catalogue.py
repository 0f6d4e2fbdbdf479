"""What can be evaluated: the lines of `ncp eval --list`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.evaluation.readers import load_requests
from jobs.evaluation.suites import suite_tasks


@dataclass(frozen=True, kw_only=True)
class CatalogueLine:
    """One task of a suite."""

    family: str
    task: str
    metric: str
    shots: int
    questions: int | None
    """None while the data has not been fetched."""


def catalogue(suite: str, data: Path | None) -> list[CatalogueLine]:
    """The tasks of a suite (or one task by its label), family by family; questions are counted where `data` is given."""
    lines = []
    for task in suite_tasks(suite):
        questions = None
        if data is not None:
            questions = len({request.group for request in load_requests(data, task.location, gold_only=True)})
        lines.append(
            CatalogueLine(
                family=task.family, task=task.label, metric=task.metric, shots=task.shots, questions=questions
            )
        )
    return lines
