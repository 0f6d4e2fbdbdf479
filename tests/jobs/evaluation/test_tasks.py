"""The table of tasks: what is quoted beside a label is what others quote beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jobs.evaluation.tasks import TASKS

QUOTED = {"acc": "accuracy", "len_norm": "accuracy_per_char", "bpb": "bits_per_byte"}
"""Its names for a metric, and ours."""
THEIRS = list(csv.DictReader((Path(__file__).parent / "olmo_eval_metrics.csv").open()))
"""`metric_type` of every label of ai2-olmo-eval 0.9.0's LABEL_TO_TASK_MAP that is a task here (its class's where it names none)."""


def test_every_label_that_the_published_package_has_too_is_listed():
    assert len(THEIRS) == 119 and {row["label"] for row in THEIRS} <= set(TASKS)


@pytest.mark.parametrize("row", THEIRS, ids=lambda row: row["label"])
def test_the_quoted_metric_is_the_published_packages(row):
    assert TASKS[row["label"]].metric == QUOTED[row["metric_type"]]
