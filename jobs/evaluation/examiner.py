"""The examiner: one checkpoint, everything it is asked, cut into pieces, each answered by a table, and the tables' sum.

    pieces()  ->  table(piece) ...  ->  result(tables)

Each of the three may run in another process, any number of times: a table is a pure function of the checkpoint and the
piece, and the result is one of the tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from curriculum.errors import InputError
from curriculum.schema import EvaluationSpec
from jobs.evaluation.generation import completion_tokens, model_completer, prompt_fitter
from jobs.evaluation.generative import answer_records, generation_of, generative_metrics, records_digest
from jobs.evaluation.heldout import HeldoutDocument, HeldoutError, evaluate_source, select_documents
from jobs.evaluation.pieces import (
    GENERATED,
    GENERATED_QUESTIONS,
    HELDOUT,
    LIKELIHOOD,
    SHARD_QUESTIONS,
    Piece,
    code_sha256,
    digest_of,
)
from jobs.evaluation.questions import sampled_records, task_requests
from jobs.evaluation.requests import Request, requests_digest
from jobs.evaluation.sandbox import require_sandbox
from jobs.evaluation.scorer import Score, score_requests
from jobs.evaluation.shards import ShardMismatch, merge_tables, plain, plan_shards, shard_table
from jobs.evaluation.suites import find_task, suite_average, suite_tasks
from jobs.evaluation.tasks import Task
from ncp_model import NCPModel
from pipeline.data.tokenizer import Tokenizer

Table = dict[str, Any]
Progress = Callable[[int, int], None]


class PoisonedQuestion(InputError):
    """A question that cannot be scored, whatever it is scored with; names it and the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutText:
    """The held-out documents of one source."""

    documents: Callable[[], Iterable[HeldoutDocument]]
    digest: str
    """Identity of the shards they come from."""


class Examiner:
    """Everything that `spec` asks of one model."""

    def __init__(
        self,
        load_model: Callable[[], NCPModel],
        *,
        tokenizer: Tokenizer,
        heldout: Mapping[str, HeldoutText],
        spec: EvaluationSpec,
        sequence_length: int,
        data: Callable[[], Path],
        batch_tokens: int = 16_384,
        shard_questions: int = SHARD_QUESTIONS,
        unsafe_execution: bool = False,
    ):
        """`load_model` and `data` (where the questions lie) are called once, when they are first needed.

        Raises SuiteError, and SandboxError where a suite runs programs that could not be contained.
        """
        self._load_model, self._data = load_model, data
        self.tokenizer, self.heldout, self.spec = tokenizer, heldout, spec
        self.sequence_length, self.batch_tokens = sequence_length, batch_tokens
        self.shard_questions, self.unsafe_execution = shard_questions, unsafe_execution
        self.tasks = {task.label: task for name in spec.suites for task in suite_tasks(name)}
        if any(task.executes for task in self.tasks.values()):
            require_sandbox(unsafe=unsafe_execution)
        # Reading a task's questions takes seconds; consecutive pieces are of the same task.
        self._shards = lru_cache(maxsize=2)(self._read_shards)
        self._records = lru_cache(maxsize=2)(self._read_records)

    @cached_property
    def model(self) -> NCPModel:
        return self._load_model()

    @cached_property
    def data(self) -> Path:
        return self._data()

    # --- pieces ----------------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """All pieces, task by task. Raises EvaluationDataError or AssetError for questions that are not to be had."""
        pieces = []
        if self.spec.heldout_tokens > 0:
            for source, text in self.heldout.items():
                asked = [text.digest, self.spec.heldout_tokens]
                pieces.append(self._piece(HELDOUT, source, 0, 1, 0, asked))
        for label, task in self.tasks.items():
            if task.generative:
                runs = self._records(label)
                for number, run in enumerate(runs):
                    digest = records_digest(run)
                    pieces.append(self._piece(GENERATED, label, number, len(runs), len(run), digest))
            else:
                shards = self._shards(label)
                for number, shard in enumerate(shards):
                    count = len({request.group for request in shard})
                    digest = requests_digest(shard)
                    pieces.append(self._piece(LIKELIHOOD, label, number, len(shards), count, digest))
        return pieces

    def _piece(self, kind: str, label: str, number: int, of: int, questions: int, asked: Any) -> Piece:
        digest = digest_of(
            kind, label, asked, self.tokenizer.sha256, self.sequence_length, self.batch_tokens, code_sha256()
        )
        return Piece(kind=kind, label=label, number=number, of=of, questions=questions, digest=digest)

    # --- tables ----------------------------------------------------------------------------------------------

    def table(self, piece: Piece, progress: Progress | None = None) -> Table:
        """The answer to one piece, as JSON values. Raises HeldoutError, PoisonedQuestion, SandboxError."""
        if piece.kind == HELDOUT:
            return self._heldout_table(piece.label, progress)
        if piece.kind == GENERATED:
            return self._generated_table(piece, progress)
        return self._likelihood_table(piece, progress)

    def _heldout_table(self, source: str, progress: Progress | None) -> Table:
        try:
            result = evaluate_source(
                self.model,
                select_documents(self.heldout[source].documents(), self.spec.heldout_tokens),
                eos_id=self.tokenizer.eos_id,
                sequence_length=self.sequence_length,
                batch_tokens=self.batch_tokens,
                progress=progress,
            )
        except HeldoutError as error:
            raise HeldoutError(f"source {source!r}: {error}") from error
        return plain(dataclasses.asdict(result))

    def _generated_table(self, piece: Piece, progress: Progress | None) -> Table:
        records = self._records(piece.label)[piece.number]
        answers = answer_records(
            self.tasks[piece.label],
            records,
            model_completer(self.model, self.tokenizer, sequence_length=self.sequence_length),
            fit=prompt_fitter(self.tokenizer, sequence_length=self.sequence_length),
            unsafe_execution=self.unsafe_execution,
            progress=progress,
        )
        return {"requests_sha256": records_digest(records), "answers": answers}

    def _likelihood_table(self, piece: Piece, progress: Progress | None) -> Table:
        shard = self._shards(piece.label)[piece.number]
        try:
            scores = self._score(shard, progress)
        except Exception as error:
            raise self._poisoned(piece, shard) or error from None
        return shard_table(shard, scores)

    def _score(self, requests: list[Request], progress: Progress | None = None) -> list[Score | None]:
        return score_requests(
            self.model,
            self.tokenizer,
            requests,
            sequence_length=self.sequence_length,
            batch_tokens=self.batch_tokens,
            progress=progress,
        )

    def _poisoned(self, piece: Piece, shard: list[Request]) -> PoisonedQuestion | None:
        """Which question alone cannot be scored; None when each can, so that the fault was not in the data."""
        groups: dict[str, list[Request]] = {}
        for request in shard:
            groups.setdefault(request.group, []).append(request)
        for group, requests in groups.items():
            try:
                self._score(requests)
            except Exception as error:
                return PoisonedQuestion(
                    f"evaluation {piece}: question {group} of {self.tasks[piece.label].location} cannot be scored "
                    f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); mend or leave out "
                    "the record, or evaluate without this task"
                )
        return None

    # --- the result ------------------------------------------------------------------------------------------

    def result(self, tables: Mapping[Piece, Table]) -> dict[str, Any]:
        """The numbers, from the tables of all pieces, in whatever order they came. Raises ShardMismatch."""
        by_label: dict[str, list[tuple[Piece, Table]]] = {}
        for piece, table in sorted(tables.items(), key=lambda item: item[0].number):
            by_label.setdefault(f"{piece.kind}:{piece.label}", []).append((piece, table))
        heldout = (
            {source: _only(by_label, f"{HELDOUT}:{source}") for source in self.heldout}
            if self.spec.heldout_tokens > 0
            else {}
        )
        tasks = {
            label: plain(self._task_result(task, [table for _, table in self._tables(by_label, task)]))
            for label, task in self.tasks.items()
        }
        return {
            "heldout": heldout,
            "tasks": tasks,
            "suites": {name: suite_average(name, tasks) for name in self.spec.suites},
            "limit": self.spec.limit,
            "heldout_tokens": self.spec.heldout_tokens,
            "sequence_length": self.sequence_length,
            "tokenizer_sha256": self.tokenizer.sha256,
            "code_sha256": code_sha256(),
        }

    def _tables(
        self, by_label: Mapping[str, list[tuple[Piece, Table]]], task: Task
    ) -> list[tuple[Piece, Table]]:
        return by_label.get(f"{GENERATED if task.generative else LIKELIHOOD}:{task.label}", [])

    def _task_result(self, task: Task, tables: list[Table]) -> dict[str, Any]:
        identity = {"family": task.family, "metric": task.metric, "shots": task.shots}
        if task.generative:
            runs = self._records(task.label)
            wanted = [records_digest(run) for run in runs]
            if [table["requests_sha256"] for table in tables] != wanted:
                raise ShardMismatch(f"evaluation: the tables of {task.label} are not of its questions")
            records = [record for run in runs for record in run]
            answers = [answer for table in tables for answer in table["answers"]]
            most = completion_tokens(self.sequence_length, generation_of(task).max_new_tokens)
            return {**identity, "max_new_tokens": most, **generative_metrics(task, records, answers)}
        shards = self._shards(task.label)
        metrics = dataclasses.asdict(merge_tables(shards, tables))
        digest = requests_digest(request for shard in shards for request in shard)
        return {**identity, "requests_sha256": digest, **metrics}

    def _read_shards(self, label: str) -> list[list[Request]]:
        requests = task_requests(find_task(label), self.data, self.spec.limit)
        return plan_shards(requests, self.shard_questions)

    def _read_records(self, label: str) -> list[list[dict[str, Any]]]:
        records = sampled_records(find_task(label), self.data, self.spec.limit)
        size = min(self.shard_questions, GENERATED_QUESTIONS)
        return [records[start : start + size] for start in range(0, len(records), size)]


def _only(by_label: Mapping[str, list[tuple[Piece, Table]]], name: str) -> Table:
    found = by_label.get(name, [])
    if len(found) != 1:
        raise ShardMismatch(f"evaluation: {name} has {len(found)} tables, needs one; evaluate again")
    return found[0][1]
