"""Questions of one's own are checked before anything is scored: exactly one gold choice a question, by a stated rule."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.pieces import DECIDE, code_sha256, meaning_of
from jobs.evaluation.readers import EvaluationDataError, load_requests
from jobs.evaluation.scorer import Score
from tests.ncp_process import ROOT


def record(doc_id: Any, idx: Any, label: Any, **other: Any) -> dict[str, Any]:
    request = {"context": f"Question {doc_id}?", "continuation": f" answer {idx}"}
    return {"doc_id": doc_id, "idx": idx, "label": label, "request": request, **other}


def question(label: Any, choices: int = 4) -> list[dict[str, Any]]:
    return [record(0, idx, label) for idx in range(choices)]


def load(folder: Path, records: list[Any]) -> Any:
    path = folder / "oe_eval_tasks" / "own" / "rc" / "requests.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode()))
    return load_requests(folder, "oe:own/rc")


@pytest.mark.parametrize(("label", "gold"), [(2, 2), ("2", 2), (2.0, 2), ("B", 1), (" D ", 3), (0, 0)])
def test_a_label_is_a_number_from_0_or_a_letter(tmp_path: Path, label: Any, gold: int) -> None:
    requests = load(tmp_path, question(label))
    assert [one.choice for one in requests if one.gold] == [gold]


@pytest.mark.parametrize("label", [None, True, 4, -1, 1.5, "E", "b", "answer 1", "", [1], {"a": 1}])
def test_a_label_that_names_no_choice_is_refused_with_its_line(tmp_path: Path, label: Any) -> None:
    with pytest.raises(
        EvaluationDataError, match=r"requests\.jsonl\.gz, line 5: label is .*question 1 has the choices"
    ):
        load(tmp_path, [*question(1), *(record(1, idx, label) for idx in range(4))])


def test_a_label_that_is_not_there_is_refused(tmp_path: Path) -> None:
    records = question(0)
    del records[2]["label"]
    with pytest.raises(EvaluationDataError, match="line 3: label is None"):
        load(tmp_path, records)


def test_two_golds_of_one_question_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError, match="name choices 0, 1; exactly one"):
        load(tmp_path, [record(0, 0, 0), record(0, 1, 1)])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (record("q7", 0, 0), "doc_id is 'q7'"),
        (record(0, "0", 0), "idx is '0'"),
        ({"idx": 0, "label": 0}, "doc_id is None"),
        ({**record(1, 0, 0), "request": {"context": "a"}}, r"request\.continuation is missing"),
        ({**record(1, 0, 0), "request": "a"}, r"request\.context is missing"),
        ({**record(1, 0, 0), "request": {"context": "a", "continuation": ""}}, "nothing to score"),
        (["no", "object"], "not a JSON object"),
    ],
)
def test_a_record_that_is_none_is_named_by_file_and_line(tmp_path: Path, bad: Any, says: str) -> None:
    with pytest.raises(EvaluationDataError, match=rf"requests\.jsonl\.gz, line 3: .*{says}|line 3: {says}"):
        load(tmp_path, [record(0, 0, 0), record(0, 1, 0), bad])


def test_a_choice_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError, match=r"has a choice .* twice"):
        load(tmp_path, [record(0, 0, 0), record(0, 0, 0)])


def test_a_single_continuation_is_the_gold_answer_whatever_its_label(tmp_path: Path) -> None:
    for label in ("some text", None, 7, ["a", "b"]):
        assert [one.gold for one in load(tmp_path, [record(0, 0, label)])] == [True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_log_probabilities_that_are_no_numbers_are_no_score(tmp_path: Path, value: float) -> None:
    requests = load(tmp_path, question(0) + [record(1, idx, 1) for idx in range(4)])
    scores = [
        Score(
            log_probability=value if index == 5 else -1.0 - index,
            tokens=2,
            bytes=8,
            characters=8,
            greedy=False,
        )
        for index in range(len(requests))
    ]
    found = task_metrics(requests, scores)
    assert (found.questions, found.invalid) == (0, 1)
    assert found.accuracy is found.bits_per_byte is found.nats_per_token is found.accuracy_per_token is None


def test_the_key_of_a_table_knows_what_code_does_and_not_how_it_is_laid_out() -> None:
    plain = "def f(a):\n    return a + 1\n"
    assert meaning_of(plain) == meaning_of(
        '"""Text."""\n\n\ndef f(a):  # why\n    """More."""\n    return (a + 1)\n'
    )
    assert meaning_of(plain) != meaning_of(plain.replace("1", "2"))
    assert len(code_sha256()) == 64
    assert all((ROOT / name).exists() for name in DECIDE)
