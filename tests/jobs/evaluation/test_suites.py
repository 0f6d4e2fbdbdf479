from __future__ import annotations

import pytest

from jobs.evaluation.suites import (
    SUITES,
    SuiteError,
    average_of_averages,
    find_suite,
    suite_average,
    suite_tasks,
)
from jobs.evaluation.tasks import TASKS


@pytest.mark.parametrize(
    ("suite", "families", "tasks"),
    [("quick", 3, 3), ("fast", 9, 26), ("easy", 25, 56), ("families-30", 30, 60), ("main", 23, 43)],
)
def test_suites_have_the_published_sizes(suite: str, families: int, tasks: int) -> None:
    assert len(SUITES[suite]) == families
    assert len({task.label for task in suite_tasks(suite)}) == tasks


def test_every_label_of_a_suite_is_a_task() -> None:
    for suite in SUITES.values():
        for labels in suite.values():
            assert set(labels) <= set(TASKS)


def test_base_easy_is_bits_per_byte_throughout() -> None:
    assert {task.metric for task in suite_tasks("easy")} == {"bits_per_byte"}


def test_a_single_task_is_a_suite_of_one() -> None:
    assert find_suite("copa") == {"copa": ("copa",)}


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(SuiteError, match=r"'quik' is no suite; did you mean 'quick'\?"):
        suite_tasks("quik")


def test_parts_of_a_family_count_once() -> None:
    suite = {"a": ("a1", "a2", "a3"), "b": ("b1",), "empty": ("e1",)}
    assert average_of_averages(
        suite, {"a1": 1.0, "a2": 0.0, "a3": 0.5, "b1": 0.9, "e1": None}
    ) == pytest.approx(0.7)
    assert average_of_averages(suite, {}) is None


def test_a_suite_of_mixed_metrics_averages_scores_and_bits_apart() -> None:
    results = {
        "gsm8k_8shot": {"metric": "exact_match", "exact_match": 0.5},
        "csqa_val_mc_5shot": {"metric": "accuracy", "accuracy": 0.7, "bits_per_byte": 2.0},
        "lambada_0shot": {"metric": "greedy_match", "greedy_match": 0.3, "bits_per_byte": 1.0},
    }
    assert suite_average("main", results) == {
        "score": pytest.approx(0.5),
        "bits_per_byte": pytest.approx(1.5),
    }
    assert suite_average("easy", {}) == {"score": None, "bits_per_byte": None}
