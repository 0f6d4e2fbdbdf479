"""Requests: the one form in which every log-likelihood benchmark reaches the scorer.

A multiple-choice question is a group of requests, one per choice; a question of which only the gold answer is scored
(bits per byte) is a group of one. `readers` makes them from the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Score `continuation` given `context`."""

    context: str
    continuation: str
    group: str
    """The question, unique within a task."""
    choice: int
    """Index among the question's choices."""
    gold: bool
    unconditional: bool = False
    """A PMI twin: the same continuation after a context that does not name the question."""
    starts: tuple[int, ...] = ()
    """Where the context's worked examples and its question start (`window.example_starts`); it follows from the data."""


def sample_questions(requests: Sequence[Request], limit: int, *, seed: int, salt: str = "") -> list[Request]:
    """The requests of `limit` questions, in their order; 0 means all. A smaller sample is part of a larger one."""
    if limit <= 0:
        return list(requests)
    chosen = set(ranked_groups({request.group for request in requests}, seed=seed, salt=salt)[:limit])
    return [request for request in requests if request.group in chosen]


def ranked_groups(groups: Iterable[str], *, seed: int, salt: str) -> list[str]:
    """Questions by a hash of (seed, salt, question): a shuffle that does not depend on Python's random numbers."""
    return sorted(groups, key=lambda group: hashlib.sha256(f"{seed}\0{salt}\0{group}".encode()).digest())


def requests_digest(requests: Iterable[Request]) -> str:
    """sha256 over everything that is asked: equal digests mean the same questions, choices and gold answers."""
    digest = hashlib.sha256()
    for request in requests:
        fields = (request.context, request.continuation, request.group, request.choice, request.gold)
        digest.update(json.dumps([*fields, request.unconditional]).encode())
        digest.update(b"\n")
    return digest.hexdigest()
