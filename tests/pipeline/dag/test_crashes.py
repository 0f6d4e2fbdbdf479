"""Whatever dies wherever: no step completes twice, none is lost, no receipt without its data, no word of the superseded.

A simulated process dies at one of its storage writes, just before or just after it, and from then on reaches storage no
more. Several runners work on the same steps at once, each replaced when it dies; some observers believe, wrongly, that a
holder is gone, as after a long pause. The same scenario runs in memory, on disk and on a real S3 server; the last test
kills real processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dag import runner
from pipeline.dag.holder import Holder
from pipeline.dag.runner import StepContext, run_steps
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage
from tests.s3_server import s3_environment, s3_server


class _Crash(BaseException):
    """The process is dead: nothing catches it."""


class _World:
    """What all simulated processes share: who is dead, and how many wrong beliefs about it are left."""

    def __init__(self, url: str, *, lies: int = 0):
        self.url = url
        self.dead: set[str] = set()
        self.lies = lies
        self._lock = threading.Lock()

    def gone(self, holder: Holder) -> bool:
        with self._lock:
            if holder.started not in self.dead and self.lies:
                self.lies -= 1
                return True
            return holder.started in self.dead


class _ProcessStorage(Storage):
    """Storage as one simulated process reaches it, until its `writes_left` are used up."""

    def __init__(self, world: _World, writes_left: int | None, *, after: bool):
        super().__init__(world.url)
        self._world, self._left, self._after = world, writes_left, after
        self._name = uuid.uuid4().hex
        self._count = threading.Lock()

    def _write(self, write: Any) -> Any:
        with self._count:
            self._alive()
            if self._left is None:
                last = False
            else:
                last = self._left == 0
                self._left -= 1
            if last and not self._after:
                self._world.dead.add(self._name)
                raise _Crash
            result = write()
            if last:
                self._world.dead.add(self._name)
                raise _Crash
            return result

    def _alive(self) -> None:
        if self._name in self._world.dead:
            raise _Crash

    def write_bytes(self, key: str, data: bytes) -> None:
        self._write(lambda: Storage.write_bytes(self, key, data))

    def create_json(self, key: str, value: Any) -> bool:
        if "holder" in value:
            value = {**value, "holder": {**value["holder"], "started": self._name}}
        return self._write(lambda: Storage.create_json(self, key, value))

    def read_bytes(self, key: str) -> bytes:
        self._alive()
        return super().read_bytes(key)

    def exists(self, key: str) -> bool:
        self._alive()
        return super().exists(key)

    def children(self, prefix: str) -> list[str]:
        self._alive()
        return super().children(prefix)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WAIT_SECONDS", 0.01)


def _work(context: StepContext) -> dict[str, Any]:
    for name in context.step.needs:
        receipt = step_store(context.storage, context.steps[name]).receipt()
        assert receipt is not None and context.storage.read_bytes(receipt["data"]) == name.encode()
    key = f"{context.step.key}/attempts/{context.attempt:06d}/data"
    context.storage.write_bytes(key, context.step.name.encode())
    if context.step.milestone is not None:
        context.store.publish_milestone(context.step.milestone, {"data": key, "attempt": context.attempt})
    return {"data": key}


def _run_until_over(world: _World, steps: list[Step], crashes: list[tuple[int, bool]], parallel: int) -> None:
    """One runner after another, each dying at its crash point; the last one lives."""
    for writes, after in [*crashes, (None, False)]:
        try:
            outcome = run_steps(
                steps,
                _ProcessStorage(world, writes, after=after),
                {"work": _work},
                run="r",
                on_event=lambda event: None,
                parallel=parallel,
            )
        except _Crash:
            continue
        assert outcome.ok, outcome
        return


def _scenario(
    world: _World, steps: list[Step], runners: list[list[tuple[int, bool]]], parallel: int = 2
) -> None:
    failures: list[BaseException] = []

    def one(crashes: list[tuple[int, bool]]) -> None:
        try:
            _run_until_over(world, steps, crashes, parallel)
        except BaseException as error:
            failures.append(error)

    with mock.patch.object(Holder, "gone", lambda holder: world.gone(holder)):
        threads = [threading.Thread(target=one, args=(crashes,)) for crashes in runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    _check(Storage(world.url), steps)


def _check(storage: Storage, steps: list[Step]) -> None:
    for step in steps:
        store = step_store(storage, step)
        leases = [name for name in storage.children(f"{step.key}/lease") if name.endswith(".json")]
        records = [storage.read_json(f"{step.key}/lease/{name}") for name in leases]
        seals = [index for index, record in enumerate(records) if "receipt" in record]
        if step.milestone is not None:
            marker = store.milestone(step.milestone)
            assert marker is not None and storage.exists(marker["data"])
            continue
        assert seals == [len(records) - 1], f"{step.name}: sealed once, and nothing after it"
        receipt = store.receipt()
        assert receipt == records[-1]["receipt"] == storage.read_json(f"{step.key}/receipt.json")
        assert receipt is not None and receipt["attempt"] == len(records) - 1, (
            "published by the current holder"
        )
        assert storage.read_bytes(receipt["data"]) == step.name.encode()


def _draw_steps(data: st.DataObject) -> list[Step]:
    steps: list[Step] = []
    for i in range(data.draw(st.integers(1, 6))):
        needs = tuple(step.name for step in steps if data.draw(st.booleans()))
        milestone = data.draw(st.sampled_from([None, None, 7]))
        if any(step.milestone is not None for step in steps if step.name in needs):
            needs = tuple(step.name for step in steps if step.name in needs and step.milestone is None)
        steps.append(
            Step(name=f"s{i}", kind="work", version=1, identity={"i": i}, needs=needs, milestone=milestone)
        )
    return steps


_CRASH = st.tuples(st.integers(0, 12), st.booleans())


@settings(max_examples=60)
@given(st.data())
def test_random_graphs_survive_crashes_at_any_write(data: st.DataObject) -> None:
    steps = _draw_steps(data)
    crashes = data.draw(st.lists(_CRASH, max_size=6))
    with mock.patch.object(runner, "WAIT_SECONDS", 0.01):
        _scenario(_World(f"memory://{uuid.uuid4().hex}"), steps, [crashes], data.draw(st.integers(1, 3)))


@settings(max_examples=60)
@given(st.data())
def test_random_graphs_survive_several_runners_that_crash_and_are_wrong_about_each_other(
    data: st.DataObject,
) -> None:
    steps = _draw_steps(data)
    runners = data.draw(st.lists(st.lists(_CRASH, max_size=3), min_size=2, max_size=3))
    world = _World(f"memory://{uuid.uuid4().hex}", lies=data.draw(st.integers(0, 4)))
    with mock.patch.object(runner, "WAIT_SECONDS", 0.01):
        _scenario(world, steps, runners)


STEPS = [
    Step(name="a", kind="work", version=1, identity={}),
    Step(name="b", kind="work", version=1, identity={}, needs=("a",)),
    Step(name="c", kind="work", version=1, identity={}, needs=("a",)),
    Step(name="s", kind="work", version=1, identity={}, needs=("b",), milestone=7),
]
RUNNERS = [[(point, after)] for point in (1, 4, 6) for after in (False, True)]


@pytest.mark.usefixtures("fast")
def test_runners_that_crash_on_a_disk(tmp_path: Path) -> None:
    _scenario(_World(str(tmp_path), lies=2), STEPS, RUNNERS)


@pytest.mark.usefixtures("fast")
def test_runners_that_crash_on_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path) as port, s3_environment(f"http://127.0.0.1:{port}"):
        _scenario(_World("s3://ncp/crashes", lies=2), STEPS, RUNNERS)


def test_every_single_write_of_a_run_may_be_its_last(tmp_path: Path) -> None:
    """Exhaustively: a run of three steps, killed before and after each of its writes in turn, then run again."""
    with mock.patch.object(runner, "WAIT_SECONDS", 0.01):
        for after in (False, True):
            for point in range(40):
                world = _World(str(tmp_path / f"{point}-{after}"))
                _scenario(world, STEPS[:3], [[(point, after)]], parallel=1)
                if not world.dead:
                    break
            assert not world.dead and point > 10, "the run ended before the crash point: all were tried"


def test_real_processes_killed_at_random_leave_every_step_done_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    context = multiprocessing.get_context("spawn")
    for turn in range(4):
        processes = [context.Process(target=_real_run, args=(storage.url,)) for _ in range(2)]
        for process in processes:
            process.start()
        if turn == 3:
            for process in processes:
                process.join(timeout=120)
                assert process.exitcode == 0
            break
        give_up = time.monotonic() + 60
        while not storage.children("steps") and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.07 * turn)
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    _check(storage, _real_steps())


def _real_steps() -> list[Step]:
    return [
        Step(name=f"s{i}", kind="work", version=1, identity={"i": i}, needs=(f"s{i - 3}",) if i >= 3 else ())
        for i in range(12)
    ]


def _slow_work(context: StepContext) -> dict[str, Any]:
    time.sleep(0.05)
    return _work(context)


def _real_run(url: str) -> None:
    runner.WAIT_SECONDS = 0.02
    outcome = run_steps(
        _real_steps(),
        Storage(url),
        {"work": _slow_work},
        run=f"run-{os.getpid()}",
        on_event=lambda event: None,
        parallel=2,
    )
    assert outcome.ok
