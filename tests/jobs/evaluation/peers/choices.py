"""Whether two ways of scoring choose alike. Imported in the peers' environments too: nothing but the project is needed."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.evaluation.requests import Request


def other_choices(requests: Sequence[Request], one: Sequence[float], other: Sequence[float]) -> int:
    """Questions whose likeliest choice differs between two lists of log-probabilities, one a request."""
    best: dict[str, list[tuple[float, int]]] = {}
    for request, *values in zip(requests, one, other, strict=True):
        found = best.setdefault(request.group, [(-1e300, -1), (-1e300, -1)])
        for side, value in enumerate(values):
            found[side] = max(found[side], (value, request.choice))
    return sum(a[1] != b[1] for a, b in best.values())
