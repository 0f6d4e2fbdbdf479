"""Pieces: what an evaluation is cut into, small enough to be lost and large enough to be worth a batch.

The cut depends on what is asked alone, never on who works; a piece is named by everything its table depends on, so a
table that is there is the answer, whoever wrote it and for whichever suite. No torch: the driver hands pieces out.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HELDOUT = "heldout"
LIKELIHOOD = "likelihood"
GENERATED = "generated"
SHARD_QUESTIONS = 256
"""Questions of a piece: seconds to minutes of work, and enough for the worked examples to be shared."""
GENERATED_QUESTIONS = 32
"""The same of a task whose answers are generated: a question costs a hundred times as much."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One unit of work: a source's held-out text, or a run of questions of one task."""

    kind: str
    """HELDOUT, LIKELIHOOD or GENERATED."""
    label: str
    """The source, or the task."""
    number: int
    of: int
    """How many pieces its source or task has."""
    questions: int
    """0 for held-out text, whose size is known only when it is read."""
    digest: str
    """sha256 over all that its table depends on, the checkpoint aside."""

    @property
    def key(self) -> str:
        """Where its table is kept, below a checkpoint's evaluations."""
        return f"{self.kind}/{_UNSAFE.sub('_', self.label)}/{self.number:05d}-{self.digest[:12]}.json"

    def __str__(self) -> str:
        return f"{self.label}, piece {self.number + 1} of {self.of}"


def digest_of(*parts: Any) -> str:
    """sha256 over plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def code_sha256() -> str:
    """sha256 over the sources that decide an evaluation's numbers: this package and the model's."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in ("jobs/evaluation", "ncp_model"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
