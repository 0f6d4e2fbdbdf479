"""What of a plan was made with other software than would do the rest of it: told, and never a reason to do it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.dag.plan import PlannedStep
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.dag.versions import version_differences, versions
from pipeline.storage import Storage


def made_with_other_software(storage: Storage, rows: Sequence[PlannedStep]) -> dict[str, tuple[str, ...]]:
    """Step -> how the software of its result differs from this process's; steps without a difference are left out."""
    found = {row.step.name: _differences(storage, row) for row in rows if row.state in ("done", "resumable")}
    return {name: differences for name, differences in found.items() if differences}


def made_with_lines(found: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for every set of differences."""
    steps: dict[tuple[str, ...], list[str]] = {}
    for name, differences in found.items():
        steps.setdefault(tuple(differences), []).append(name)
    return [
        f"made with other software: {', '.join(names)} ({'; '.join(differences)}); kept as it is, the rest is done with this"
        for differences, names in steps.items()
    ]


def _differences(storage: Storage, row: PlannedStep) -> tuple[str, ...]:
    record = _record(StepStore(storage, row.step.key), row.step, row.resumes_at)
    return version_differences((record or {}).get("versions") or {}, versions())


def _record(store: StepStore, step: Step, resumes_at: int | None) -> Mapping[str, Any] | None:
    if step.milestone is None:
        return store.receipt()
    return store.milestone(step.milestone if resumes_at is None else resumes_at)
