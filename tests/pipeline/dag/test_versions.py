"""Which software a result was made with is recorded beside it and decides nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.dag.attempt import attempt
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.dag.versions import COMMIT_VARIABLE, code_commit, version_differences, versions
from pipeline.storage import Storage

ROOT = Path(__file__).parents[3]


def test_a_receipt_names_the_commit_and_the_versions(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    step = Step(name="a", kind="k", version=1, identity={"a": 1})
    lease = LeaseBook(storage, step.key).acquire("r")
    assert isinstance(lease, Lease)
    attempt(step, {"a": step}, storage, lease, lambda _: {"result": 1}, "r")
    receipt = StepStore(storage, step.key).receipt()
    assert receipt is not None and receipt["result"] == 1
    assert (
        receipt["versions"] == versions()
        and {"commit", "python", "ray", "torch"} <= receipt["versions"].keys()
    )


def test_the_commit_is_the_clones_and_says_when_files_differ() -> None:
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert code_commit() in (head, f"{head} with changes")


def test_code_without_its_history_is_told_its_commit(tmp_path: Path) -> None:
    program = "from pipeline.dag.versions import code_commit; print(repr(code_commit()))"
    for package in ("curriculum", "pipeline"):
        (tmp_path / package).symlink_to(ROOT / package)
    for environment, said in (({COMMIT_VARIABLE: "abc"}, "'abc'"), ({COMMIT_VARIABLE: ""}, "''")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == said, done.stderr


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({}, ()),
        ({"torch": "2.13.0", "ray": "2.60.0"}, ()),
        ({"torch": "2.12.0", "gone": "1"}, ("torch 2.12.0 there, 2.13.0 here",)),
        ({"commit": ""}, ()),
        ({"commit": "abc", "torch": "2.13.0"}, ("commit abc there, def here",)),
    ],
)
def test_only_what_both_name_can_differ(recorded: dict[str, str], said: tuple[str, ...]) -> None:
    here = {"commit": "def", "torch": "2.13.0", "ray": "2.60.0"}
    assert version_differences(recorded, here) == said
