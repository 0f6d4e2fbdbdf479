"""Logs in storage: immutable parts, sessions one after another, readable by anyone at any time."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from jobs.runs import log as run_log
from jobs.runs.log import RunLog, read_run_log, read_step_log
from pipeline.storage import Storage
from tests.ncp_process import wait_for


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path))
    steps = [{"name": "stage1", "kind": "stage", "key": "steps/stage1-0", "milestone": 5}]
    storage.create_json(
        "runs/r/run.json", {"run": "r", "recipe": {"recipe": "x"}, "created": 0, "steps": steps}
    )
    return storage


def test_lines_of_all_sessions_come_in_order_with_their_time(storage: Storage) -> None:
    for text in ("first", "second"):
        with RunLog(storage, "r") as log:
            log.add(text)
    lines = "".join(read_run_log(storage, "r")).splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["first", "second"]
    assert all(line[10] == "T" and line[19] == "Z" for line in lines)


def test_how_a_session_ended_is_kept(storage: Storage) -> None:
    with pytest.raises(RuntimeError), RunLog(storage, "r") as log:
        log.add("working")
        raise RuntimeError("head node gone")
    assert "ended by RuntimeError: head node gone" in "".join(read_run_log(storage, "r"))


def test_what_storage_refuses_is_kept_and_written_when_it_answers_again(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where the session's folder would be, so every part is refused by the file system itself."""
    monkeypatch.setattr(run_log, "PART_SECONDS", 0.01)
    with RunLog(storage, "r") as log:
        folder = tmp_path / "runs" / "r" / "log" / "000001"
        shutil.rmtree(folder)
        folder.write_text("in the way")
        log.add("first")
        wait_for(lambda: log.refused)
        folder.unlink()
        log.add("second")
        wait_for(lambda: not log.refused)
    assert [line.split(" ", 1)[1] for line in "".join(read_run_log(storage, "r")).splitlines()] == [
        "first",
        "second",
    ]
    assert capsys.readouterr().err.count("could not be written") == 1


def test_following_a_run_that_nobody_works_on_ends(storage: Storage) -> None:
    with RunLog(storage, "r") as log:
        log.add("only line")
    assert len(list(read_run_log(storage, "r", follow=True, grace=0.0))) == 1


def test_a_follower_waits_for_a_run_that_was_submitted_and_has_not_started(storage: Storage) -> None:
    pieces = read_run_log(storage, "r", follow=True, grace=5.0)

    def start() -> None:
        with RunLog(storage, "r") as log:
            log.add("started late")

    starter = threading.Timer(1.0, start)
    starter.start()
    assert "started late" in next(pieces)
    starter.join()


def test_a_steps_failures_and_stacks_are_shown(storage: Storage) -> None:
    storage.write_json(
        "steps/stage1-0/failures/000001.json", {"error": "boom", "class": "user", "traceback": "tb"}
    )
    storage.write_bytes("steps/stage1-0/stacks/000001-rank1.txt", b"where it hung")
    text = "".join(read_step_log(storage, "r", "stage1"))
    assert "attempt 1 (user): boom" in text and "where it hung" in text


def test_an_unknown_run_or_step_is_named(storage: Storage) -> None:
    with pytest.raises(RecipeError, match="'q' does not exist"):
        list(read_run_log(storage, "q"))
    with pytest.raises(RecipeError, match="'stage2' is not in run 'r'; did you mean 'stage1'"):
        list(read_step_log(storage, "r", "stage2"))
