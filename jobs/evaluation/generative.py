"""Generative tasks: answers and programs a model writes, judged right or wrong.

A task knows its prompt (worked examples included, as the package serves them), where a completion ends, and how one
is judged. Who completes is a parameter: a model (`generation.complete`), or in the self-tests the gold answers, which
must score (nearly) one before any model's score means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.evaluation.answers import gsm8k_answer, last_boxed, math_answer, same_math
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

Complete = Callable[[Sequence[str], Sequence[str], int], list[list[str]]]
"""(prompts, stop strings, most new tokens) -> for each prompt its samples."""


@dataclass(frozen=True, kw_only=True)
class GenerativeTask:
    """One benchmark whose answers are generated."""

    label: str
    location: str
    metric: str
    """`exact_match` or `pass_at_1`."""
    shots: int
    max_new_tokens: int
    stops: tuple[str, ...]
    right: Callable[[Mapping[str, Any], str], bool] | None = None
    """Judges a completion by reading it: (document, completion)."""
    program: Callable[[Mapping[str, Any], str], str] | None = None
    """Judges a completion by running what this builds from it."""


def gsm8k_right(document: Mapping[str, Any], completion: str) -> bool:
    return gsm8k_answer(completion) == gsm8k_answer(document["short_answer"])


def math_right(document: Mapping[str, Any], completion: str) -> bool:
    gold = last_boxed(document["solution"])
    return gold is not None and same_math(math_answer(completion), gold)


GENERATIVE: dict[str, GenerativeTask] = {
    task.label: task
    for task in (
        GenerativeTask(
            label="gsm8k_8shot_cot", location="gsm8k/gold_bpb_5shot", metric="exact_match", shots=8,
            max_new_tokens=512, stops=("Question:", "\n\n"), right=gsm8k_right,
        ),
        GenerativeTask(
            label="minerva_math_500_4shot", location="minerva_math_500/gold_bpb_0shot", metric="exact_match", shots=4,
            max_new_tokens=1024, stops=("Problem:", "I hope it is correct."), right=math_right,
        ),
        GenerativeTask(
            label="codex_humaneval_3shot", location="codex_humaneval/gold_bpb_3shot", metric="pass_at_1", shots=3,
            max_new_tokens=512, stops=HUMANEVAL_STOPS, program=humaneval_program,
        ),
        GenerativeTask(
            label="codex_mbpp_3shot", location="codex_mbpp/gold_bpb_3shot", metric="pass_at_1", shots=3,
            max_new_tokens=512, stops=MBPP_STOPS, program=mbpp_program,
        ),
    )
}  # fmt: skip


def evaluate_generative(
    task: GenerativeTask,
    data: Path,
    complete: Complete,
    *,
    questions: Sequence[int] | None = None,
    ks: Sequence[int] = (1,),
    batch_size: int = 16,
    workers: int = 2,
    unsafe_execution: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Complete and judge every question (or those of the given `doc_id`s).

    Gives questions, samples a question, the metric with its standard error over questions, and pass@k for every k that
    the number of samples allows. Raises SandboxError where programs cannot be contained.
    """
    wanted = None if questions is None else set(questions)
    records = [r for r in read_records(data, task.location) if wanted is None or r["doc_id"] in wanted]
    chances: list[dict[int, float]] = []
    samples = 0
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(records), batch_size):
            batch = records[start : start + batch_size]
            prompts = [record["request"]["context"] for record in batch]
            completions = complete(prompts, task.stops, task.max_new_tokens)
            judged = [
                (record["doc"], truncate_at(text, task.stops) if task.program else text)
                for record, texts in zip(batch, completions, strict=True)
                for text in texts
            ]
            verdicts = list(pool.map(lambda item: _judge(task, item[0], item[1], unsafe_execution), judged))
            for texts in completions:
                samples = len(texts)
                right, verdicts = sum(verdicts[: len(texts)]), verdicts[len(texts) :]
                chances.append({k: pass_at_k(len(texts), right, k) for k in (1, *ks) if k <= len(texts)})
            if progress is not None:
                progress(len(chances), len(records))
    result: dict[str, Any] = {"questions": len(records), "samples": samples, "skipped": 0}
    for k in sorted({1, *ks}):
        values = [chance[k] for chance in chances if k in chance]
        name = task.metric if k == 1 else f"pass_at_{k}"
        result[name], result[f"{name}_stderr"] = mean(values), standard_error(values)
    return result


def _judge(task: GenerativeTask, document: Mapping[str, Any], completion: str, unsafe: bool) -> bool:
    if task.right is not None:
        return task.right(document, completion)
    assert task.program is not None
    return run_program(task.program(document, completion), limits=Limits(), unsafe=unsafe).passed
