"""Stopping through storage: what is asked, what outlives a new start, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from jobs.runs.stop import (
    SUBMISSION_VARIABLE,
    StoppedByRequest,
    attempt_stop_requested,
    check_submission,
    claim_submission,
    request_run_stop,
    run_stop_requested,
    submissions,
    withdraw_run_stop,
)
from jobs.show.stop_view import stop_run
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path))
    steps = [
        {"name": "shards", "kind": "shards", "key": "steps/shards-0", "milestone": None},
        {"name": "stage1", "kind": "stage", "key": "steps/stage1-0", "milestone": 5},
    ]
    storage.create_json(
        "runs/r/run.json", {"run": "r", "recipe": {"recipe": "x"}, "created": 0, "steps": steps}
    )
    return storage


def test_every_submission_has_a_number_of_its_own(storage: Storage) -> None:
    assert [claim_submission(storage, "r", {"to": "a"}) for _ in range(3)] == [1, 2, 3]
    assert submissions(storage, "r") == [1, 2, 3]


def test_a_submission_that_was_stopped_before_it_started_never_starts(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = claim_submission(storage, "r", {})
    request_run_stop(storage, "r")
    later = claim_submission(storage, "r", {})
    assert submissions(storage, "r") == [stopped, later], "a stop is no submission"
    withdraw_run_stop(storage, "r")  # as the later one does when it starts
    assert not run_stop_requested(storage, "r")
    monkeypatch.setenv(SUBMISSION_VARIABLE, str(later))
    check_submission(storage, "r")
    monkeypatch.setenv(SUBMISSION_VARIABLE, str(stopped))
    with pytest.raises(StoppedByRequest, match="submission 1 of r was stopped before it started"):
        check_submission(storage, "r")
    monkeypatch.delenv(SUBMISSION_VARIABLE)
    check_submission(storage, "r")


def test_a_running_step_is_asked_and_what_is_left_is_said(storage: Storage) -> None:
    book = LeaseBook(storage, "steps/stage1-0")
    lease = book.acquire("r")
    assert isinstance(lease, Lease)
    with lease:
        lines = stop_run(storage, "r", None)
        assert attempt_stop_requested(storage, "steps/stage1-0", lease.number)
    assert lines[0] == "r: asked to stop"
    assert lines[1].startswith("  stage1: ends at its next boundary")
    assert [line.split()[1] for line in lines if "left:" in line] == ["shards", "stage1"]
    assert "ncp submit" in lines[-1]


def test_a_run_of_another_name_is_left_alone(storage: Storage) -> None:
    with pytest.raises(RecipeError, match="'other' does not exist"):
        stop_run(storage, "other", None)
    assert storage.keys("runs/other") == []


def test_a_run_that_nobody_works_on_says_so(storage: Storage) -> None:
    assert stop_run(storage, "r", None)[0] == "r: nothing was running"
