"""Evaluations of one run over its tokens, as curves of the report: held-out text, and the average of every suite."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from curriculum.schema import Recipe
from curriculum.tokens import tokens_before
from jobs.runs.mixture import mixture_average
from jobs.runs.recorded import reading, recorded_recipe
from jobs.show.report.model import Curve
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

FEWEST = 3
"""Evaluations from which on a curve says more than the table does."""


def evaluation_curves(storage: Storage, record: Mapping[str, Any]) -> tuple[Curve, ...]:
    """One curve a measure, through all checkpoints of the run that were evaluated; none for fewer than FEWEST."""
    recipe = recorded_recipe(record)
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for step in record["steps"]:
        if step["kind"] != "evaluation":
            continue
        with contextlib.suppress(DamagedRecord), reading(step["key"]):  # the run's status names it
            receipt = StepStore(storage, step["key"]).receipt()
            if receipt is None:
                continue
            stage = recipe.stages[receipt["stage"]]
            tokens = tokens_before(recipe, receipt["stage"]) + receipt["step"] * stage.global_batch_tokens
            for name, value in _measures(recipe, receipt["result"]).items():
                if value is not None:
                    points.setdefault(name, []).append((float(tokens), value))
    return tuple(
        Curve(
            key=f"evaluation {title}",
            title=title,
            unit=unit,
            smooth=False,
            x=[x for x, _ in sorted(found)],
            y=[y for _, y in sorted(found)],
        )
        for (title, unit), found in points.items()
        if len(found) >= FEWEST
    )


def _measures(recipe: Recipe, result: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    """(title, unit) -> value. Held-out text is averaged with the last stage's weights, so that all points compare."""
    *_, last = recipe.stages
    averaged = mixture_average(result["heldout"], recipe.stages[last].mixture)
    found: dict[tuple[str, str], float | None] = {
        (f"Held-out text, {last} mixture", "bits/byte"): averaged["model"]["bits_per_byte"]
        if averaged and averaged["model"]
        else None
    }
    for suite, average in result["suites"].items():
        found[f"Suite {suite}", "average score"] = average["score"]
        found[f"Suite {suite}, gold answers", "bits/byte"] = average["bits_per_byte"]
    return found
