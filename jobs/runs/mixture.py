"""What held-out results per source mean for a mixture of them. No torch: reports and tables use it too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def mixture_average(
    sources: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, Any] | None:
    """Held-out numbers of a stream in which sources have these shares of *tokens*; None if a source is missing.

    `sources` is what `evaluate_heldout` returns. Nats per token are averaged with the weights; so are bytes per token,
    and bits per byte is the quotient: what such a stream would cost. Concept losses are averaged like nats.
    """
    total = math.fsum(weights.values())
    shares = {name: weight / total for name, weight in weights.items() if weight > 0}
    if not shares or any(name not in sources for name in shares):
        return None

    def average(value: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        values = {name: value(sources[name]) for name in shares}
        if any(found is None for found in values.values()):
            return None
        return math.fsum(share * (values[name] or 0.0) for name, share in shares.items())

    bytes_per_token = average(lambda source: source["bytes"] / source["tokens"])

    def length(kind: str) -> dict[str, float] | None:
        nats = average(lambda source: source[kind] and source[kind]["nats_per_token"])
        if nats is None or not bytes_per_token:
            return None
        return {"nats_per_token": nats, "bits_per_byte": nats / math.log(2) / bytes_per_token}

    concept = {
        name: average(lambda source, name=name: source["concept"] and source["concept"][name])
        for name in ("ncp_loss", "ncp_r2", "vq_loss")
    }
    return {
        "weights": shares,
        "model": length("model"),
        "zero_concept": length("zero_concept"),
        "unigram": length("unigram"),
        "concept": None if None in concept.values() else concept,
    }
