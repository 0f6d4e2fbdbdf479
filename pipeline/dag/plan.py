"""What would run, what is done, and why not: the plan that is read before GPU-hours are spent.

Planning only reads storage. For a step that is not done it looks at every stored step of the same name and reports the
nearest one with the identity fields that differ, as dotted paths with old and new value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.identity import UNKNOWN, difference
from pipeline.dag.lease import LeaseBook, Sealed
from pipeline.dag.step import Step, check_graph
from pipeline.dag.store import StepStore, step_store
from pipeline.storage import Storage

MAX_DIFFERENCES = 20


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One row of the plan."""

    step: Step
    state: str
    """`done`, `resumable`, `running` (another run computes it now), `to run`, or `unknown` (source not pinned)."""
    detail: str
    """Why: where it resumes, who computes it, or what differs from the nearest output."""
    resumes_at: int | None = None
    differences: tuple[tuple[str, Any, Any], ...] = ()
    nearest: str | None = None
    """Key of the nearest existing output of that name."""


def make_plan(
    steps: Sequence[Step], storage: Storage, *, comparable: Callable[[Step, str], bool] | None = None
) -> list[PlannedStep]:
    """The state of every step. `comparable(step, key)`: whether the output at `key` may be the nearest one of `step`.

    Raises ValueError for a malformed graph.
    """
    check_graph(steps)
    existing: dict[str, list[str]] = {}
    for name in storage.children("steps"):
        existing.setdefault(name[:-13], []).append(name)
    return [_planned(step, storage, existing.get(step.name, ()), comparable) for step in steps]


def _planned(
    step: Step,
    storage: Storage,
    existing: Sequence[str],
    comparable: Callable[[Step, str], bool] | None,
) -> PlannedStep:
    """`existing`: stored directories of steps of the same name."""
    if not step.known:
        return PlannedStep(step=step, state="unknown", detail=UNKNOWN)
    store = step_store(storage, step)
    if store.published(step):
        return PlannedStep(step=step, state="done", detail=_done_detail(step))
    found = LeaseBook(storage, step.key).look() if step.key.rpartition("/")[2] in existing else None
    if isinstance(found, Sealed):
        return PlannedStep(step=step, state="done", detail=_done_detail(step))
    held = found
    resumes_at = store.newest_milestone(step.milestone) if step.milestone is not None else None
    if held is not None:
        return PlannedStep(step=step, state="running", detail=str(held), resumes_at=resumes_at)
    if resumes_at:
        return PlannedStep(
            step=step,
            state="resumable",
            detail=f"continues the same trajectory from step {resumes_at} to {step.milestone}",
            resumes_at=resumes_at,
        )
    if comparable is not None:
        existing = [
            name
            for name in existing
            if comparable(step, f"steps/{name}") or name == step.key.rpartition("/")[2]
        ]
    nearest, differences = _nearest(step, storage, existing)
    if nearest is None:
        return PlannedStep(step=step, state="to run", detail="never computed")
    if not differences:
        return PlannedStep(
            step=step, state="to run", detail="started before, nothing complete yet", nearest=nearest
        )
    return PlannedStep(
        step=step,
        state="to run",
        detail="; ".join(describe_difference(*row) for row in differences[:MAX_DIFFERENCES]),
        differences=tuple(differences),
        nearest=nearest,
    )


def describe_difference(path: str, old: Any, new: Any) -> str:
    """`optimizer.lr: 0.002 -> 0.001`, with long digests shortened."""
    return f"{path}: {_short(old)} -> {_short(new)}"


def _nearest(
    step: Step, storage: Storage, existing: Sequence[str]
) -> tuple[str | None, list[tuple[str, Any, Any]]]:
    best: tuple[str | None, list[tuple[str, Any, Any]]] = (None, [])
    for name in existing:
        identity = StepStore(storage, f"steps/{name}").identity()
        if identity is None:
            continue
        rows = [(_without_prefix(path), old, new) for path, old, new in difference(identity, step.described)]
        if best[0] is None or len(rows) < len(best[1]):
            best = (f"steps/{name}", rows)
    return best


def _without_prefix(path: str) -> str:
    return path.removeprefix("identity.")


def _done_detail(step: Step) -> str:
    return "receipt" if step.milestone is None else f"milestone at step {step.milestone}"


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = str(value)
    return text[:12] if len(text) == 64 and all(c in "0123456789abcdef" for c in text) else text
