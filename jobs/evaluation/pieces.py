"""Pieces: what an evaluation is cut into, small enough to be lost and large enough to be worth a batch.

The cut depends on what is asked alone, never on who works; a piece is named by everything its table depends on, so a
table that is there is the answer, whoever wrote it and for whichever suite. No torch: the driver hands pieces out.
"""

from __future__ import annotations

import ast
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


DECIDE = (
    "jobs/evaluation/answers.py",
    "jobs/evaluation/examiner.py",
    "jobs/evaluation/forward.py",
    "jobs/evaluation/generation.py",
    "jobs/evaluation/generative.py",
    "jobs/evaluation/heldout.py",
    "jobs/evaluation/metrics.py",
    "jobs/evaluation/programs.py",
    "jobs/evaluation/readers.py",
    "jobs/evaluation/requests.py",
    "jobs/evaluation/sandbox.py",
    "jobs/evaluation/sandbox_init.py",
    "jobs/evaluation/scorer.py",
    "jobs/evaluation/shared_prefix.py",
    "jobs/evaluation/tasks.py",
    "jobs/evaluation/token_rows.py",
    "jobs/evaluation/window.py",
    "ncp_model/generate.py",
    "ncp_model/grid.py",
    "ncp_model/layers.py",
    "ncp_model/losses.py",
    "ncp_model/metrics.py",
    "ncp_model/mixing.py",
    "ncp_model/model.py",
    "ncp_model/output.py",
    "ncp_model/quantizer.py",
    "ncp_model/residual.py",
    "ncp_model/session.py",
    "ncp_model/towers.py",
)
"""The files that decide an evaluation's numbers. What lays out a table or a page is not among them."""


@cache
def code_sha256() -> str:
    """sha256 over what the files of DECIDE do: their syntax trees, without comments, blanks and docstrings."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in DECIDE:
        digest.update(f"{name}\0{meaning_of((root / name).read_text())}\0".encode())
    return digest.hexdigest()


def meaning_of(source: str) -> str:
    """A module's syntax tree as text; equal for sources that differ in layout, comments or docstrings alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                child
                for child in body
                if not (
                    isinstance(child, ast.Expr)
                    and isinstance(child.value, ast.Constant)
                    and isinstance(child.value.value, str)
                )
            ]
    return ast.dump(tree)
