"""The schedule: edges and capacity are never violated, nothing is forgotten, the longest road goes first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dag.schedule import Schedule
from pipeline.dag.step import Step


def _step(name: str, *needs: str, after: tuple[str, ...] = (), **resources: float) -> Step:
    return Step(name=name, kind="work", version=1, identity={}, needs=needs, after=after, resources=resources)


def _startable(schedule: Schedule) -> list[str]:
    names = []
    while (step := schedule.start_next()) is not None:
        names.append(step.name)
    return names


def test_training_starts_before_evaluations_that_nothing_waits_for() -> None:
    stage1 = _step("stage1", GPU=7)
    evaluations = [_step(f"eval-{i}", "stage1", GPU=1) for i in range(3)]
    steps = [stage1, *evaluations, _step("stage2", "stage1", GPU=7), _step("stage2-eval", "stage2", GPU=1)]
    schedule = Schedule(steps, {"GPU": 8})
    assert _startable(schedule) == ["stage1"]
    schedule.finish(stage1, failed=False)
    assert _startable(schedule) == ["stage2", "eval-0"]
    schedule.finish(evaluations[0], failed=False)
    assert _startable(schedule) == ["eval-1"]


def test_a_last_stage_that_nothing_hangs_on_starts_before_evaluations_too() -> None:
    stage1 = _step("stage1", CPU=1)
    steps = [stage1, _step("stage1-eval", "stage1", CPU=0.5), _step("stage2", "stage1", CPU=1)]
    schedule = Schedule(steps, {"CPU": 2})
    assert _startable(schedule) == ["stage1"]
    schedule.finish(stage1, failed=False)
    assert _startable(schedule) == ["stage2", "stage1-eval"]


def test_a_step_too_large_for_the_cluster_runs_alone() -> None:
    steps = [_step("big", CPU=9), _step("small", CPU=1)]
    schedule = Schedule(steps, {"CPU": 2})
    assert _startable(schedule) == ["big"]
    schedule.finish(steps[0], failed=False)
    assert _startable(schedule) == ["small"]


def test_a_step_that_waits_leaves_its_resources_to_others() -> None:
    steps = [_step("held", CPU=2), _step("free", CPU=2)]
    schedule = Schedule(steps, {"CPU": 2})
    assert _startable(schedule) == ["held"]
    schedule.put_off(steps[0])
    assert _startable(schedule) == ["free"]
    schedule.finish(steps[1], failed=False)
    schedule.resume(steps[0])
    assert _startable(schedule) == ["held"]


@settings(max_examples=40)
@given(st.data())
def test_any_graph_is_worked_off_within_its_edges_and_capacity(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    steps: list[Step] = []
    for i in range(count):
        needs = tuple(step.name for step in steps if data.draw(st.integers(0, 3)) == 0)
        after = tuple(
            step.name for step in steps if step.name not in needs and data.draw(st.integers(0, 4)) == 0
        )
        claims = {"CPU": float(data.draw(st.integers(1, 4)))} if data.draw(st.booleans()) else {}
        steps.append(_step(f"s{i}", *needs, after=after, **claims))
    schedule = Schedule(steps, {"CPU": 3.0})
    running: list[Step] = []
    waiting: list[Step] = []
    over: dict[str, str] = {}
    while True:
        while (step := schedule.start_next()) is not None:
            assert all(over.get(name) == "done" for name in step.needs)
            assert all(name in over for name in step.after)
            running.append(step)
            claimed = [one.resources["CPU"] for one in running if one.resources]
            assert sum(claimed) <= 3.0 or len(claimed) == 1
        if not running and not waiting:
            break
        if waiting and (not running or data.draw(st.booleans())):
            schedule.resume(waiting.pop())
            continue
        step = running.pop(data.draw(st.integers(0, len(running) - 1)))
        match data.draw(st.sampled_from(["done", "done", "failed", "put off"])):
            case "put off":
                schedule.put_off(step)
                waiting.append(step)
            case end:
                over[step.name] = end
                for other, culprit in schedule.finish(step, failed=end == "failed"):
                    assert over[culprit] == "failed" and other.name not in over
                    over[other.name] = "blocked"
    assert set(over) == {step.name for step in steps}
    for step in steps:
        broken = any(over[name] in ("failed", "blocked") for name in step.needs)
        assert (over[step.name] == "blocked") == broken
