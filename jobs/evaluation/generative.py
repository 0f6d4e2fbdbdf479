"""Generative tasks: answers and programs a model writes, judged right or wrong.

A task knows its prompt (worked examples included, as the package serves them), where a completion ends, and how one
is judged. Who completes is a parameter: a model (`generation.complete`), or in the self-tests the gold answers, which
must score (nearly) one before any model's score means anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.evaluation.answers import gsm8k_answer, last_boxed, math_answer, same_math, token_f1
from jobs.evaluation.metrics import mean, standard_error
from jobs.evaluation.programs import (
    HUMANEVAL_STOPS,
    MBPP_STOPS,
    humaneval_program,
    mbpp_program,
    pass_at_k,
    truncate_at,
)
from jobs.evaluation.readers import read_records
from jobs.evaluation.sandbox import Limits, run_program
from jobs.evaluation.tasks import Task
from jobs.evaluation.window import Fitted

Complete = Callable[[Sequence[str], Sequence[str], int], list[list[str]]]
"""(prompts, stop strings, most new tokens) -> for each prompt its samples."""

Fit = Callable[[Sequence[str], int, int], Sequence[Fitted | None]]
"""(prompts, worked examples in each, most new tokens) -> what of each fits the window; None where its question does not."""

Score = Callable[[Mapping[str, Any], str], float]
"""How right a completion is, 0 to 1: (record, completion)."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How the answers of a task are generated and judged."""

    max_new_tokens: int
    stops: tuple[str, ...]
    score: Score | None = None
    """Judges a completion by reading it."""
    answered: Callable[[str], bool] = lambda completion: bool(completion.strip())
    """Whether a completion holds an answer at all."""
    program: Callable[[Mapping[str, Any], str], str] | None = None
    """Judges a completion by running what this builds from the document and it."""


def gsm8k_right(record: Mapping[str, Any], completion: str) -> float:
    return float(gsm8k_answer(completion) == gsm8k_answer(record["doc"]["short_answer"]))


def math_right(record: Mapping[str, Any], completion: str) -> float:
    gold = last_boxed(record["doc"]["solution"])
    return float(gold is not None and same_math(math_answer(completion), gold))


def words_right(record: Mapping[str, Any], completion: str) -> float:
    label = record["label"]
    golds = (
        [" ".join(gold) if isinstance(gold, list) else gold for gold in label]
        if isinstance(label, list)
        else [label]
    )
    return token_f1(completion, golds)


def generation_of(task: Task) -> Generation:
    """How a generative task is answered. Raises ValueError for one that is scored by log-likelihood."""
    if not task.generative:
        raise ValueError(f"evaluation: {task.label} is scored by log-likelihood, not generated")
    if task.family == "gsm8k":
        return Generation(
            max_new_tokens=512,
            stops=("Question:", "\n\n"),
            score=gsm8k_right,
            answered=lambda text: gsm8k_answer(text) is not None,
        )
    if task.family.startswith("minerva_math"):
        return Generation(
            max_new_tokens=1024,
            stops=("Problem:", "I hope it is correct."),
            score=math_right,
            answered=lambda text: math_answer(text) is not None,
        )
    if task.family == "humaneval":
        return Generation(max_new_tokens=512, stops=HUMANEVAL_STOPS, program=humaneval_program)
    if task.family == "mbpp":
        return Generation(max_new_tokens=512, stops=MBPP_STOPS, program=mbpp_program)
    stops = ("\n\n", "Question:", "Passage:", "Category:", "Title:")
    return Generation(max_new_tokens=50, stops=stops, score=words_right)


Answer = Mapping[str, Any]
"""One sample: its `text`, and its `score` from 0 to 1."""
Answered = Mapping[str, Any]
"""One question: its `samples`, and how many worked examples its prompt lost (`dropped`)."""


def task_records(task: Task, data: Path, questions: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The records of a generative task, or those of the given `doc_id`s."""
    wanted = None if questions is None else set(questions)
    location = task.location.removeprefix("oe:")
    return [record for record in read_records(data, location) if wanted is None or record["doc_id"] in wanted]


def answer_records(
    task: Task,
    records: Sequence[Mapping[str, Any]],
    complete: Complete,
    *,
    fit: Fit | None = None,
    batch_size: int = 16,
    workers: int = 2,
    unsafe_execution: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Answered | None]:
    """Every record's samples, completed and judged; None for a question that does not fit the window (`fit`; without it
    all do). Raises SandboxError where programs cannot be contained."""
    generation = generation_of(task)
    answers: list[Answered | None] = []
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(records), batch_size):
            batch = records[start : start + batch_size]
            contexts = [record["request"]["context"] for record in batch]
            if fit is None:
                fitted: Sequence[Fitted | None] = [
                    Fitted(context=text, ids=(), dropped=0) for text in contexts
                ]
            else:
                fitted = fit(contexts, task.shots, generation.max_new_tokens)
            asked = [
                (record, prompt) for record, prompt in zip(batch, fitted, strict=True) if prompt is not None
            ]
            texts = [prompt.context for _, prompt in asked]
            completions = complete(texts, generation.stops, generation.max_new_tokens) if asked else []
            pairs = [
                (record, text)
                for (record, _), samples in zip(asked, completions, strict=True)
                for text in samples
            ]
            scores = iter(
                pool.map(lambda pair: _judge(generation, pair[0], pair[1], unsafe_execution), pairs)
            )
            given = iter(completions)
            for prompt in fitted:
                if prompt is None:
                    answers.append(None)
                    continue
                samples = [{"text": text, "score": next(scores)} for text in next(given)]
                answers.append({"samples": samples, "dropped": prompt.dropped})
            if progress is not None:
                progress(len(answers), len(records))
    return answers


def generative_metrics(
    task: Task,
    records: Sequence[Mapping[str, Any]],
    answers: Sequence[Answered | None],
    ks: Sequence[int] = (1,),
) -> dict[str, Any]:
    """Over the questions that were asked: their number, how many were skipped (question and completion do not fit the window),
    asked with fewer worked examples (`n_truncated`), left without an answer in any sample (`n_unanswered`); the metric with its
    standard error over questions, and pass@k for every k that the number of samples allows."""
    asked = [one for one in answers if one is not None]
    sampled: list[Sequence[Answer]] = [one["samples"] for one in asked]
    samples = len(sampled[0]) if sampled else 0
    answered = generation_of(task).answered
    result: dict[str, Any] = {
        "requests_sha256": records_digest(records),
        "questions": len(asked),
        "samples": samples,
        "skipped": len(answers) - len(asked),
        "n_truncated": sum(one["dropped"] > 0 for one in asked),
        "n_unanswered": sum(not any(answered(answer["text"]) for answer in given) for given in sampled),
    }
    for k in sorted({1, *ks}):
        if k == 1:
            values = [sum(answer["score"] for answer in given) / samples for given in sampled]
        elif k <= samples:
            values = [
                pass_at_k(samples, sum(answer["score"] == 1.0 for answer in given), k) for given in sampled
            ]
        else:
            values = []
        name = task.metric if k == 1 else f"pass_at_{k}"
        result[name], result[f"{name}_stderr"] = mean(values), standard_error(values)
    return result


def evaluate_generative(
    task: Task,
    data: Path,
    complete: Complete,
    *,
    fit: Fit | None = None,
    questions: Sequence[int] | None = None,
    ks: Sequence[int] = (1,),
    batch_size: int = 16,
    workers: int = 2,
    unsafe_execution: bool = False,
) -> dict[str, Any]:
    """`generative_metrics` of every question (or of the given `doc_id`s), completed by `complete`."""
    records = task_records(task, data, questions)
    answers = answer_records(
        task,
        records,
        complete,
        fit=fit,
        batch_size=batch_size,
        workers=workers,
        unsafe_execution=unsafe_execution,
    )
    return generative_metrics(task, records, answers, ks)


def _judge(generation: Generation, record: Mapping[str, Any], completion: str, unsafe: bool) -> float:
    completion = truncate_at(completion, generation.stops) if generation.program else completion
    if generation.score is not None:
        return generation.score(record, completion)
    assert generation.program is not None
    return float(
        run_program(generation.program(record["doc"], completion), limits=Limits(), unsafe=unsafe).passed
    )


def records_digest(records: Sequence[Mapping[str, Any]]) -> str:
    """sha256 over what is asked and judged: equal digests mean the same questions and gold answers."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(
            json.dumps(
                [record["doc_id"], record["doc"], record["request"]["context"]], sort_keys=True
            ).encode()
        )
        digest.update(b"\n")
    return digest.hexdigest()
