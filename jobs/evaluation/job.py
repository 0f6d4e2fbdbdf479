"""What an evaluation's actors are told, and where its results lie: plain frozen data. No torch, no Ray.

Below a trajectory's directory, beside its milestones and outliving them:

    evaluations/000000400/likelihood/{task}/00003-{digest}.json    a piece's table: every score of 256 questions
    evaluations/000000400/generated/{task}/00000-{digest}.json     the same with the answers a model wrote
    evaluations/000000400/heldout/{source}/00000-{digest}.json     a source's held-out text
    evaluations/000000400/suites/{suite}.json                      the numbers of one suite on this checkpoint
    evaluations/000000400/suites/heldout-{tokens}.json             the same of the held-out text

A suite's name carries its limit, and the data's digest where that is not the published package: `easy-limit-100.json`,
`oe_my_task_rc-1a2b3c4d.json`. A table that exists is never computed again, whichever suite or run asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curriculum.model_spec import ModelSpec
from curriculum.schema import EvaluationSpec, SourceSpec
from jobs.evaluation.pieces import SHARD_QUESTIONS, Piece

EVALUATION_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """Questions that are not the published package's: a pinned source of the same layout."""

    source: str
    spec: SourceSpec
    location: str | None
    digest: str


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """One checkpoint, and all that is asked of it."""

    storage_url: str
    trajectory: str
    """Storage key of the stage's step directory."""
    fingerprint: str
    """The trajectory's whole fingerprint."""
    stage: str
    step: int
    model: ModelSpec
    spec: EvaluationSpec
    sequence_length: int
    heldout: Mapping[str, tuple[str, str]]
    """Source -> storage key and fingerprint of its shards."""
    tokenizer: str
    """Storage key of the tokenizer's file."""
    attempt: int
    data: EvaluationData | None = None
    batch_tokens: int = 16_384
    shard_questions: int = SHARD_QUESTIONS
    """Not runtime: with another cut the numbers may differ in their last bits."""
    threads: int = 1
    device: str = "cpu"
    unsafe_execution: bool = False

    @property
    def root(self) -> str:
        """Storage key below which everything about this checkpoint's evaluations lies."""
        return f"{self.trajectory}/evaluations/{self.step:09d}"

    def piece_key(self, piece: Piece) -> str:
        return f"{self.root}/{piece.key}"

    def suite_key(self, suite: str) -> str:
        """Storage key of the numbers of one suite, or of `heldout`."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", suite)
        if suite == "heldout":
            name += f"-{self.spec.heldout_tokens}"
        else:
            name += f"-limit-{self.spec.limit}" if self.spec.limit else ""
            name += f"-{self.data.digest[:8]}" if self.data is not None else ""
        return f"{self.root}/suites/{name}.json"

    def checkpoint(self) -> dict[str, Any]:
        """Which checkpoint it is, as a result names it."""
        return {
            "trajectory": self.fingerprint,
            "stage": self.stage,
            "step": self.step,
            "key": f"{self.trajectory}/milestones/{self.step:09d}.json",
        }
