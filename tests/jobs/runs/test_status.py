"""Status from storage alone: every state a step can be in."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.runs.status import QUIET_SECONDS, progress_text, run_status
from jobs.show.display import RunDisplay
from pipeline.dag.holder import Holder
from pipeline.dag.retry import RetryPolicy
from pipeline.dag.runner import Event, StepContext, run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _step(name: str, milestone: int | None = None) -> Step:
    return Step(name=name, kind="work", version=1, identity={}, milestone=milestone)


def _record(storage: Storage, *steps: Step) -> None:
    storage.create_json(
        "runs/r/run.json",
        {
            "recipe": {"recipe": "demo"},
            "created": 0,
            "steps": [
                {"name": step.name, "kind": step.kind, "key": step.key, "milestone": step.milestone}
                for step in steps
            ],
        },
    )


def _status(storage: Storage) -> dict[str, tuple[str, str]]:
    return {step.name: (step.state, step.detail) for step in run_status(storage, "r").steps}


def test_the_states_of_a_run_that_failed(storage: Storage) -> None:
    steps = [_step("a"), _step("b"), _step("c")]
    _record(storage, *steps)
    assert _status(storage) == dict.fromkeys("abc", ("waiting", ""))
    assert run_status(storage, "r").state == "stopped"

    def work(context: StepContext) -> dict[str, Any]:
        if context.step.name == "b":
            raise ValueError("source x: no documents")
        return {}

    run_steps(steps[:2], storage, {"work": work}, run="r", on_event=lambda event: None)
    status = _status(storage)
    assert status["a"][0] == "done"
    assert status["b"] == ("failed", "attempt 1: source x: no documents")
    assert status["c"] == ("waiting", "")
    assert run_status(storage, "r").state == "failed"


def test_between_two_attempts_a_step_has_not_failed(storage: Storage) -> None:
    step = _step("a")
    _record(storage, step)
    seen = []

    def look(event: Event) -> None:
        if event.kind in ("retrying", "failed"):
            seen.append(_status(storage)["a"])

    def work(context: StepContext) -> dict[str, Any]:
        raise OSError("node n1 went away")

    retry = RetryPolicy(infrastructure=1, backoff_seconds=0.001)
    run_steps([step], storage, {"work": work}, run="r", on_event=look, retry=retry)
    assert seen == [
        ("running", "attempt 1 failed, another follows: OSError: node n1 went away"),
        ("failed", "attempt 2: OSError: node n1 went away"),
    ]


def test_a_retry_that_never_came_is_a_failure(storage: Storage) -> None:
    """The runner was killed in the pause before it."""
    step = _step("a")
    _record(storage, step)
    failure = {"error": "lost", "class": "infrastructure", "again_in": 5.0}
    StepStore(storage, step.key).write_failure(1, failure)
    assert _status(storage)["a"][0] == "running"
    path = f"{step.key}/failures/000001.json"
    storage.write_json(path, {**storage.read_json(path), "at": time.time() - 200})
    assert _status(storage)["a"] == ("failed", "attempt 1: lost")


def test_a_running_step_shows_its_progress_and_its_holder(storage: Storage) -> None:
    step = _step("s", milestone=100)
    _record(storage, step)
    holder = Holder.here()
    storage.create_json(f"{step.key}/lease/000001.json", {"run": "r", "holder": holder.record(), "at": 0})
    StepStore(storage, step.key).write_progress(
        1, {"unit": "tokens", "done": 1000, "total": 4000, "loss": 4.5, "rate": 250.0, "eta_seconds": 12}
    )
    state, detail = _status(storage)["s"]
    assert state == "running"
    assert "1,000/4,000 tokens   25 %  loss 4.500  250 tokens/s  ETA 0:12" in detail
    assert f"process {holder.pid}" in detail


def test_a_step_that_stands_still_shows_no_speed_and_no_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step("s", milestone=100)
    _record(storage, step)
    holder = Holder.here()
    storage.create_json(f"{step.key}/lease/000001.json", {"run": "r", "holder": holder.record(), "at": 0})
    told = {"unit": "tokens", "done": 1000, "total": 4000, "rate": 250.0, "eta_seconds": 12}
    StepStore(storage, step.key).write_progress(1, told)
    later = time.time() + QUIET_SECONDS
    monkeypatch.setattr("jobs.runs.status.time.time", lambda: later)
    (status,) = run_status(storage, "r").steps
    assert status.state == "running" and "1,000/4,000 tokens" in status.detail
    assert "ETA" not in status.detail and "tokens/s" not in status.detail
    assert "last sign of life 300 s ago" in status.detail
    assert status.progress is not None and not {"rate", "eta_seconds"} & status.progress.keys()


def test_an_attempt_that_has_said_nothing_yet_is_not_shown_with_the_numbers_of_the_one_before(
    storage: Storage,
) -> None:
    step = _step("s", milestone=100)
    _record(storage, step)
    store, here = StepStore(storage, step.key), Holder.here()
    dead = Holder(**{**here.record(), "started": "0"})
    storage.create_json(f"{step.key}/lease/000001.json", {"run": "r", "holder": dead.record(), "at": 0})
    store.write_progress(1, {"unit": "tokens", "done": 3900, "total": 4000, "rate": 250.0, "eta_seconds": 1})
    store.publish_milestone(40, {"attempt": 1})
    storage.create_json(f"{step.key}/lease/000002.json", {"run": "r", "holder": here.record(), "at": 0})
    (status,) = run_status(storage, "r").steps
    assert (status.state, status.attempt, status.progress) == ("running", 2, None)
    assert status.detail.startswith("starting from step 40 (") and "ETA" not in status.detail


def test_a_step_whose_holder_was_killed_is_stopped_and_says_where_it_resumes(storage: Storage) -> None:
    step = _step("s", milestone=100)
    _record(storage, step)
    dead = Holder(**{**Holder.here().record(), "started": "0"})
    storage.create_json(f"{step.key}/lease/000001.json", {"run": "r", "holder": dead.record(), "at": 0})
    StepStore(storage, step.key).publish_milestone(40, {"attempt": 1})
    assert _status(storage)["s"] == ("stopped", "resumable at step 40")


def test_progress_is_shown_as_far_as_it_is_known() -> None:
    assert progress_text({}) == ""
    assert progress_text({"unit": "groups", "done": 1, "total": 4, "phase": "x"}) == "1/4 groups   25 %  x"


def test_without_a_terminal_the_display_prints_plain_lines(storage: Storage) -> None:
    stream = io.StringIO()
    with RunDisplay(storage, 2, stream=stream) as display:
        run_steps(
            [_step("a"), _step("b")],
            storage,
            {"work": lambda context: {}},
            run="r",
            on_event=display.on_event,
        )
    lines = stream.getvalue().splitlines()
    assert [line.split(" ")[1] for line in lines] == ["a:", "a:", "b:", "b:"]
    assert lines[1].startswith("[1/2] a: done in") and "\r" not in stream.getvalue()
