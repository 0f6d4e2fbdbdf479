"""The standard error of a suite's average: what its tasks' own errors make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jobs.evaluation.suites import find_suite


def suite_stderr(name: str, results: Mapping[str, Mapping[str, Any]], kind: str) -> float | None:
    """Standard error of `suite_average(name, results)[kind]`, `kind` being `score` or `bits_per_byte`.

    Tasks count as independent; each family's error is that of the mean of its tasks, the suite's that of the mean of
    its families. None when a task that takes part has no error of its own. Raises SuiteError for an unknown suite.
    """
    families = []
    for labels in find_suite(name).values():
        errors = []
        for label in labels:
            metric = _metric(results.get(label), kind)
            if metric is None:
                continue
            error = results[label].get(f"{metric}_stderr")
            if error is None:
                return None
            errors.append(float(error))
        if errors:
            families.append(math.hypot(*errors) / len(errors))
    return math.hypot(*families) / len(families) if families else None


def _metric(result: Mapping[str, Any] | None, kind: str) -> str | None:
    """Which number of a task takes part in the average, as `suite_average` chooses it."""
    if result is None:
        return None
    if kind == "score" and result["metric"] == "bits_per_byte":
        return None
    metric = result["metric"] if kind == "score" else "bits_per_byte"
    return metric if result.get(metric) is not None else None
