"""Beside the training: progress gets into storage, and what storage says gets back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.runs.stop import request_attempt_stop
from jobs.training import attempt_watch
from jobs.training.attempt_watch import AttemptWatch
from pipeline.dag.store import StepStore
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr(attempt_watch, "WATCH_SECONDS", 0.01)
    storage = Storage(str(tmp_path))
    storage.write_json("s/lease/000001.json", {})
    yield storage


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_request_to_stop_and_a_later_attempt_are_noticed(storage: Storage) -> None:
    watch = AttemptWatch(storage, "s", 1)
    assert not watch.stop_wanted and not watch.superseded
    request_attempt_stop(storage, "s", 1)
    _until(lambda: watch.stop_wanted)
    storage.write_json("s/lease/000002.json", {})
    _until(lambda: watch.superseded)
    watch.close()


def test_the_last_progress_is_written_before_it_closes_unless_another_attempt_holds_the_step(
    storage: Storage,
) -> None:
    watch = AttemptWatch(storage, "s", 1)
    watch.progress({"step": 1})
    _until(lambda: (StepStore(storage, "s").progress() or {}).get("step") == 1)
    watch.progress({"step": 2})
    watch.close()
    progress = StepStore(storage, "s").progress()
    assert progress is not None and (progress["step"], progress["attempt"]) == (2, 1)

    late = AttemptWatch(storage, "s", 1)
    storage.write_json("s/lease/000002.json", {})
    _until(lambda: late.superseded)
    late.progress({"step": 3})
    late.close()
    progress = StepStore(storage, "s").progress()
    assert progress is not None and progress["step"] == 2
