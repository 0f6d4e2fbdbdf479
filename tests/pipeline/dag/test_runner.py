"""The runner: order, cache, failure classes, cascade, and crashes at any point."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dag.runner import (
    Blocked,
    Event,
    Preempted,
    Refused,
    RetryPolicy,
    StepContext,
    Stopped,
    Undone,
    run_steps,
)
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _step(
    name: str, *needs: str, value: int = 0, after: tuple[str, ...] = (), milestone: int | None = None
) -> Step:
    return Step(
        name=name,
        kind="work",
        version=1,
        identity={"value": value},
        needs=needs,
        after=after,
        milestone=milestone,
    )


def _run(steps: list[Step], storage: Storage, work: Any, **options: Any) -> tuple[Any, list[str]]:
    events: list[Event] = []
    outcome = run_steps(steps, storage, {"work": work}, run="r", on_event=events.append, **options)
    return outcome, [f"{event.step.name}:{event.kind}" for event in events]


def _quick(retries: int) -> RetryPolicy:
    return RetryPolicy(infrastructure=retries, backoff_seconds=0.0)


def test_steps_run_in_order_and_leave_receipts(storage: Storage) -> None:
    seen = []
    steps = [_step("a"), _step("b", "a")]

    def work(context: StepContext) -> dict[str, Any]:
        seen.append(context.step.name)
        return {"made": context.step.name}

    outcome, events = _run(steps, storage, work)
    assert outcome.ok and seen == ["a", "b"]
    assert events == ["a:started", "a:done", "b:started", "b:done"]
    receipt = step_store(storage, steps[1]).receipt()
    assert receipt is not None and receipt["made"] == "b" and receipt["attempt"] == 1
    assert step_store(storage, steps[0]).identity() == steps[0].described


def test_a_second_run_does_nothing(storage: Storage) -> None:
    steps = [_step("a"), _step("b", "a")]
    _run(steps, storage, lambda context: {})
    _, events = _run(steps, storage, lambda context: pytest.fail("ran again"))
    assert events == ["a:cached", "b:cached"]


def test_a_changed_identity_is_another_step(storage: Storage) -> None:
    _run([_step("a", value=1)], storage, lambda context: {})
    _, events = _run([_step("a", value=2)], storage, lambda context: {})
    assert events == ["a:started", "a:done"]


def test_bad_input_is_not_retried_and_blocks_only_what_needs_it(storage: Storage) -> None:
    steps = [_step("a"), _step("b", "a"), _step("c", "b"), _step("d", after=("a",))]
    calls = []

    def work(context: StepContext) -> dict[str, Any]:
        calls.append(context.step.name)
        if context.step.name == "a":
            raise ValueError("source x: no documents; check its location")
        return {}

    outcome, events = _run(steps, storage, work)
    assert calls == ["a", "d"]
    assert events == ["a:started", "a:failed", "b:blocked", "c:blocked", "d:started", "d:done"]
    assert outcome.failed["a"].user and outcome.failed["a"].message.startswith("source x")
    assert outcome.blocked == {"b": "a", "c": "a"}
    failure = step_store(storage, steps[0]).failure()
    assert failure is not None and failure["class"] == "user" and "Traceback" in failure["traceback"]


def test_an_infrastructure_failure_is_retried_with_a_new_attempt(storage: Storage) -> None:
    attempts = []

    def work(context: StepContext) -> dict[str, Any]:
        attempts.append(context.attempt)
        if len(attempts) < 3:
            raise ConnectionError("node lost")
        return {}

    outcome, _ = _run([_step("a")], storage, work, retry=_quick(2))
    assert outcome.ok and attempts == [1, 2, 3]


def test_the_retry_budget_ends(storage: Storage) -> None:
    attempts = []

    def work(context: StepContext) -> dict[str, Any]:
        attempts.append(context.attempt)
        raise ConnectionError("node lost")

    outcome, _ = _run([_step("a")], storage, work, retry=_quick(1))
    assert attempts == [1, 2]
    assert outcome.failed["a"].message == "ConnectionError: node lost" and not outcome.failed["a"].user


def test_a_trajectory_is_done_at_its_milestone_and_continued_by_a_later_stop(storage: Storage) -> None:
    starts = []

    def work(context: StepContext) -> dict[str, Any]:
        assert context.step.milestone is not None
        starts.append(context.store.newest_milestone(context.step.milestone))
        context.store.publish_milestone(context.step.milestone, {"step": context.step.milestone})
        return {}

    _run([_step("s", milestone=10)], storage, work)
    _, events = _run([_step("s", milestone=10)], storage, work)
    assert events == ["s:cached"]
    _run([_step("s", milestone=15)], storage, work)
    assert starts == [None, 10]
    _, events = _run([_step("s", milestone=10)], storage, work)
    assert events == ["s:cached"]


def test_an_executor_that_forgets_its_milestone_is_a_failure(storage: Storage) -> None:
    outcome, _ = _run([_step("s", milestone=10)], storage, lambda context: {}, retry=_quick(0))
    assert "without its milestone" in outcome.failed["s"].message


def test_a_superseded_attempt_publishes_nothing_and_the_runner_uses_the_winner(storage: Storage) -> None:
    step = _step("a")

    def work(context: StepContext) -> dict[str, Any]:
        storage.create_json(f"{step.key}/lease/000002.json", {"receipt": {"attempt": 1, "by": "the other"}})
        return {"by": "me"}

    outcome, events = _run([step], storage, work)
    assert outcome.ok and events == ["a:started", "a:waiting", "a:cached"]
    receipt = step_store(storage, step).receipt()
    assert receipt is not None and receipt["by"] == "the other"


def test_a_stop_request_ends_the_run_before_the_next_attempt_and_records_no_failure(storage: Storage) -> None:
    steps, computed = [_step("a"), _step("b")], []

    def work(context: StepContext) -> dict[str, Any]:
        computed.append(context.step.name)
        return {}

    with pytest.raises(Stopped):
        _run(steps, storage, work, stop_requested=lambda: bool(computed))
    assert computed == ["a"]
    outcome, events = _run(steps, storage, work)
    assert outcome.ok and events == ["a:cached", "b:started", "b:done"]


def test_an_executor_that_was_stopped_leaves_the_step_free(storage: Storage) -> None:
    def stopped(context: StepContext) -> dict[str, Any]:
        raise Stopped("by a signal")

    with pytest.raises(Stopped):
        _run([_step("a")], storage, stopped)
    assert step_store(storage, _step("a")).failure() is None
    outcome, _ = _run([_step("a")], storage, lambda context: {})
    assert outcome.ok


@pytest.mark.parametrize(("error", "kind"), [(Refused("no"), "refused"), (Blocked("not known"), "blocked")])
def test_a_step_that_declines_is_not_retried_and_records_no_failure(
    storage: Storage, error: Exception, kind: str
) -> None:
    def work(context: StepContext) -> dict[str, Any]:
        raise error

    step = _step("a")
    outcome, events = _run([step, _step("b", "a")], storage, work)
    assert events == ["a:started", f"a:{kind}", "b:blocked"]
    assert outcome.failed["a"].refused == (kind == "refused")
    assert step_store(storage, step).failure() is None


def test_independent_steps_run_at_the_same_time(storage: Storage) -> None:
    both = threading.Barrier(2, timeout=30)

    def work(context: StepContext) -> dict[str, Any]:
        if context.step.name in ("b", "c"):
            both.wait()  # passes only when both are under way
        return {}

    outcome, events = _run([_step("a"), _step("b", "a"), _step("c", "a")], storage, work, parallel=2)
    assert outcome.done == ("a", "b", "c")
    for name in ("a", "b", "c"):
        assert [event for event in events if event.startswith(name)] == [f"{name}:started", f"{name}:done"]


def test_steps_that_do_not_fit_together_run_one_after_the_other(storage: Storage) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work(context: StepContext) -> dict[str, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1
        return {}

    steps = [
        Step(name=f"s{i}", kind="work", version=1, identity={}, resources={"GPU": 1.0}) for i in range(4)
    ]
    outcome, _ = _run(steps, storage, work, parallel=4, capacity={"GPU": 1.0})
    assert outcome.ok and most == 1


def test_a_stop_lets_the_steps_under_way_end_and_starts_no_other(storage: Storage) -> None:
    stop, ended = threading.Event(), []

    def work(context: StepContext) -> dict[str, Any]:
        if context.step.name == "a":
            raise Stopped("by a signal")
        stop.set()
        threading.Event().wait(0.1)
        ended.append(context.step.name)
        return {}

    with pytest.raises(Stopped):
        _run([_step("a"), _step("b"), _step("c")], storage, work, parallel=2, stop_requested=stop.is_set)
    assert ended == ["b"]
    assert step_store(storage, _step("b")).receipt() is not None
    assert step_store(storage, _step("c")).identity() is None


def test_a_step_that_waits_for_its_next_attempt_lets_the_others_go_on(storage: Storage) -> None:
    finished = threading.Event()
    attempts = []

    def work(context: StepContext) -> dict[str, Any]:
        if context.step.name == "b":
            finished.set()
            return {}
        attempts.append(context.attempt)
        if len(attempts) == 1:
            raise ConnectionError("node lost")
        assert finished.is_set()
        return {}

    retry = RetryPolicy(infrastructure=1, backoff_seconds=0.2)
    outcome, events = _run([_step("a"), _step("b")], storage, work, retry=retry)
    assert outcome.ok and attempts == [1, 2]
    assert events == ["a:started", "a:retrying", "b:started", "b:done", "a:started", "a:done"]


def test_preemptions_spend_no_infrastructure_retry(storage: Storage) -> None:
    attempts = []

    def work(context: StepContext) -> dict[str, Any]:
        attempts.append(context.attempt)
        if len(attempts) < 8:
            raise Preempted("the spot node was taken back")
        return {}

    outcome, _ = _run([_step("a")], storage, work, retry=_quick(0))
    assert outcome.ok and len(attempts) == 8
    failure = step_store(storage, _step("a")).failure()
    assert failure is not None and failure["class"] == "preemption"


def test_milestones_refill_the_budget(storage: Storage) -> None:
    """A trajectory that fails again and again, each time a milestone further, comes to its end."""

    def work(context: StepContext) -> dict[str, Any]:
        newest = context.store.newest_milestone(10) or 0
        context.store.publish_milestone(newest + 1, {})
        if newest + 1 < 10:
            raise ConnectionError("node lost")
        return {}

    outcome, events = _run([_step("s", milestone=10)], storage, work, retry=_quick(1))
    assert outcome.ok and events.count("s:retrying") == 9


def test_a_storage_that_fails_for_a_moment_costs_an_attempt_and_not_the_run(storage: Storage) -> None:
    class Flaky(Storage):
        failing = 2

        def children(self, prefix: str) -> list[str]:
            if self.failing:
                self.failing -= 1
                raise OSError("503 SlowDown")
            return super().children(prefix)

    outcome, events = _run([_step("a")], Flaky(storage.url), lambda context: {}, retry=_quick(2))
    assert outcome.ok and events == ["a:retrying", "a:retrying", "a:started", "a:done"]


def test_bad_input_that_failed_before_is_tried_again_unless_told_otherwise(storage: Storage) -> None:
    def bad(context: StepContext) -> dict[str, Any]:
        raise ValueError("source x: empty")

    _run([_step("a")], storage, bad)
    outcome, events = _run([_step("a")], storage, lambda context: pytest.fail("ran"), retry_failed=False)
    assert events == ["a:failed"] and outcome.failed["a"].message == "failed before: source x: empty"
    outcome, _ = _run([_step("a")], storage, lambda context: {})
    assert outcome.ok


def test_secrets_of_the_environment_are_in_no_failure(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-value")

    def leaks(context: StepContext) -> dict[str, Any]:
        raise ConnectionError("refused for planted-secret-value at https://me:hunter2hunter2@host/x")

    outcome, _ = _run([_step("a")], storage, leaks, retry=_quick(0))
    kept = b"".join(storage.read_bytes(key) for key in storage.keys("")).decode() + str(outcome)
    assert "ConnectionError" in kept and "planted-secret-value" not in kept and "hunter2" not in kept


class _Crash(BaseException):
    """The process dies here: nothing catches it."""


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_graphs_with_crashes_complete_every_step_exactly_once(data: st.DataObject) -> None:
    """No step completes twice, none is lost, and no receipt is there without its data."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    count = data.draw(st.integers(1, 6))
    steps = [
        _step(
            f"s{i}",
            *(f"s{j}" for j in range(i) if data.draw(st.booleans())),
            value=data.draw(st.integers(0, 3)),
        )
        for i in range(count)
    ]
    crash_points = data.draw(st.sets(st.integers(0, 3 * count), max_size=4))
    completions: list[str] = []
    clock = 0

    def work(context: StepContext) -> dict[str, Any]:
        nonlocal clock
        for name in context.step.needs:
            assert step_store(storage, context.steps[name]).receipt() is not None
        for phase in ("before data", "after data"):
            clock += 1
            if clock in crash_points:
                raise _Crash(phase)
            if phase == "before data":
                storage.write_bytes(f"{context.step.key}/attempts/{context.attempt}", b"data")
        completions.append(context.step.name)
        return {"data": f"{context.step.key}/attempts/{context.attempt}"}

    for _ in range(len(crash_points) + 1):
        try:
            outcome = run_steps(steps, storage, {"work": work}, run="r", on_event=lambda event: None)
            assert outcome.ok
            break
        except _Crash:
            continue
    assert sorted(completions) == sorted({step.name for step in steps})
    for step in steps:
        receipt = step_store(storage, step).receipt()
        assert receipt is not None and storage.exists(receipt["data"])


@pytest.mark.parametrize("runners", [4])
def test_several_runners_at_once_compute_every_step_once(storage: Storage, runners: int) -> None:
    steps = [_step("a"), _step("b", "a"), _step("c")]
    computed: list[str] = []
    outcomes = []

    def work(context: StepContext) -> dict[str, Any]:
        computed.append(context.step.name)
        return {}

    def runner() -> None:
        outcomes.append(run_steps(steps, storage, {"work": work}, run="r", on_event=lambda event: None).ok)

    threads = [threading.Thread(target=runner) for _ in range(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * runners
    assert sorted(computed) == ["a", "b", "c"]


def test_a_step_that_turns_out_undone_is_done_again_before_those_that_found_it_so(storage: Storage) -> None:
    """Two steps side by side read a's output and find it damaged: it is made once, then both go on."""
    steps = [_step("a", milestone=4), _step("b", "a"), _step("c", "a"), _step("d", "b", "c")]
    made: list[str] = []
    together = threading.Barrier(2)

    def work(context: StepContext) -> dict[str, Any]:
        name = context.step.name
        store = step_store(storage, steps[0])
        if name == "a":
            made.append("a")
            context.store.publish_milestone(4, {"at": len(made)})
        elif name in "bc" and made.count("a") == 1:
            together.wait()
            store.retract_milestone(4)
            raise Undone("a", "its milestone was damaged")
        return {}

    outcome, events = _run(steps, storage, work, parallel=2)
    assert outcome.ok and outcome.done == ("a", "b", "c", "d")
    assert made.count("a") == 2
    assert events.count("a:started") == 2 and events.count("d:started") == 1
    assert max(events.index("b:done"), events.index("c:done")) > len(events) - 1 - events[::-1].index(
        "a:done"
    )
    assert events[-1] == "d:done"


def test_a_step_that_cannot_be_done_again_fails_those_that_wait_for_it(storage: Storage) -> None:
    steps = [_step("a", milestone=4), _step("b", "a"), _step("c", "b")]

    def work(context: StepContext) -> dict[str, Any]:
        if context.step.name == "b":
            step_store(storage, steps[0]).retract_milestone(4)
            raise Undone("a", "its milestone was damaged")
        if context.attempt > 1:
            raise ValueError("no room")
        context.store.publish_milestone(4, {})
        return {}

    outcome, _ = _run(steps, storage, work)
    assert outcome.failed["b"].message == "no room" and outcome.blocked == {"c": "b"}


def test_with_only_one_step_wanted_an_undone_one_is_told_and_not_done(storage: Storage) -> None:
    steps = [_step("a", milestone=4), _step("b", "a")]

    def work(context: StepContext) -> dict[str, Any]:
        raise Undone("a", "its milestone was damaged")

    outcome, _ = _run(steps, storage, work, wanted={"b"})
    assert outcome.failed["b"].user and "a: its milestone was damaged" in outcome.failed["b"].message
