"""Collection: only what no run names goes, whoever starts, crashes or computes at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.graph import build_graph
from jobs.runs import garbage as collection
from jobs.runs.garbage import Unnamed, collect, remove, starting, unnamed
from jobs.runs.initial_checkpoint import initial_pin_key
from jobs.runs.record import list_runs, read_run, record_run, remove_run
from pipeline.dag import lease as lease_module
from pipeline.dag.holder import Holder
from pipeline.dag.lease import Lease, LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.data.pins import pin_key
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _record(storage: Storage, run: str, *overrides: str) -> None:
    """A recorded run, all of whose steps are done, with some data."""
    recipe = load_recipe("demo", overrides)
    steps = build_graph(recipe, PINS)
    for step in steps:
        store = StepStore(storage, step.key)
        store.write_identity(step)
        storage.write_bytes(f"{step.key}/attempts/000001/data", b"x" * 100)
        if step.milestone is None:
            store.complete_receipt({"attempt": 1})
        else:
            store.publish_milestone(step.milestone, {"attempt": 1})
    record_run(storage, run, recipe, PINS, steps, overrides)


def _names(items: list[Unnamed]) -> set[str]:
    return {item.key.removeprefix("steps/")[:-13] for item in items}


def _collect(storage: Storage) -> tuple[set[str], set[str]]:
    removed: list[Unnamed] = []
    stayed = collect(storage, removed.append)
    return _names(removed), _names(stayed)


def test_what_any_run_names_stays_and_a_fork_goes_with_its_run(storage: Storage) -> None:
    _record(storage, "base")
    _record(storage, "fork", "stage2.optimizer.lr=0.001")
    assert unnamed(storage) == []
    remove_run(storage, "fork")
    assert list_runs(storage) == ["base"]
    assert _names(unnamed(storage)) == {"stage2", "stage2-eval", "report"}
    assert all(item.bytes > 100 for item in unnamed(storage))
    removed, stayed = _collect(storage)
    assert removed == {"stage2", "stage2-eval", "report"} and not stayed
    assert unnamed(storage) == []
    for step in read_run(storage, "base")["steps"]:
        assert storage.exists(f"{step['key']}/attempts/000001/data")


def test_evaluations_by_hand_stay_as_long_as_their_trajectory_is_named(storage: Storage) -> None:
    _record(storage, "base")
    trajectory = next(step for step in read_run(storage, "base")["steps"] if step["name"] == "stage1")
    identity = {"kind": "evaluation", "identity": {"trajectory": trajectory["fingerprint"], "step": 100}}
    storage.write_json("steps/stage1-eval-0123456789ab/identity.json", identity)
    assert unnamed(storage) == []
    remove_run(storage, "base")
    assert "steps/stage1-eval-0123456789ab" in {item.key for item in unnamed(storage)}


def test_pins_and_builtin_text_go_when_no_run_names_their_source(storage: Storage) -> None:
    _record(storage, "base")
    for name, spec in load_recipe("demo").sources.items():
        storage.write_json(pin_key(name, spec), {"location": f"sources/{name}-0123456789ab"})
        storage.write_bytes(f"sources/{name}-0123456789ab/data/{name}/part-00000.jsonl.zst", b"x")
    assert unnamed(storage) == []
    remove_run(storage, "base")
    kinds = [item.kind for item in unnamed(storage)]
    assert kinds.count("pin") == 2 and kinds.count("source") == 2
    _collect(storage)
    assert storage.keys("pins") == storage.keys("sources") == storage.keys("steps") == []


def test_a_checkpoint_that_a_run_starts_from_stays_with_its_trajectory(storage: Storage) -> None:
    """Although the run that trained it is gone, and only a pin says where it lies."""
    _record(storage, "base")
    trained = next(step["key"] for step in read_run(storage, "base")["steps"] if step["name"] == "stage1")
    checkpoint = {"url": storage.url, "step_key": trained, "step": 200}
    storage.write_json(initial_pin_key("base7b"), {"format": 1, "checkpoint": checkpoint})
    recipe = load_recipe("demo", ["stage1.init.from=base7b", "runtime.locations.base7b=/elsewhere"])
    steps = build_graph(recipe, {**PINS, "base7b": "e" * 64})
    record_run(storage, "heir", recipe, PINS, steps, [])
    remove_run(storage, "base")
    keys = {item.key for item in unnamed(storage)}
    assert keys and trained not in keys and initial_pin_key("base7b") not in keys
    remove_run(storage, "heir")
    assert {trained, initial_pin_key("base7b")} <= {item.key for item in unnamed(storage)}


def test_a_step_that_someone_computes_stays(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_SECONDS", 0.05)
    key = "steps/orphan-0123456789ab"
    storage.write_bytes(f"{key}/data", b"x")
    lease = LeaseBook(storage, key).acquire("theirs")
    assert isinstance(lease, Lease)
    with lease:
        removed, stayed = _collect(storage)
        assert not removed and stayed == {"orphan"}
        assert storage.exists(f"{key}/data")
    assert _collect(storage) == ({"orphan"}, set())


def test_a_holder_elsewhere_whose_heart_stands_still_is_not_waited_for_for_ever(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseBook.__init__, "__kwdefaults__", {"ttl": 0.3})
    holder = Holder(host="other", boot="another-boot", namespace="pid:[1]", pid=1, started="1")
    record = {"run": "lost", "holder": holder.record(), "at": 0}
    storage.create_json("steps/orphan-0123456789ab/lease/000001.json", record)
    assert _collect(storage) == ({"orphan"}, set())


def test_a_run_that_starts_and_a_collection_exclude_each_other(storage: Storage) -> None:
    """The collector waits for the run's record, so the run's steps survive although they were unnamed before."""
    _record(storage, "base")
    remove_run(storage, "base")
    collected: list[set[str]] = []
    with starting(storage, lambda text: None):
        collector = threading.Thread(target=lambda: collected.append(_collect(storage)[0]))
        collector.start()
        time.sleep(0.5)
        assert collector.is_alive() and len(storage.children("steps")) == 9
        recipe = load_recipe("demo")
        record_run(storage, "again", recipe, PINS, build_graph(recipe, PINS), [])
    collector.join()
    assert collected == [set()]
    assert all(StepStore(storage, s["key"]).identity() for s in read_run(storage, "again")["steps"])


def test_a_run_that_starts_during_a_collection_waits_for_its_end(storage: Storage) -> None:
    lease = LeaseBook(storage, "gc/collector").acquire("ncp gc")
    assert isinstance(lease, Lease)
    said: list[str] = []
    started = threading.Event()

    def start() -> None:
        with starting(storage, said.append):
            started.set()

    with lease:
        with pytest.raises(Superseded, match="another collection is under way"):
            collect(storage, lambda item: None)
        run = threading.Thread(target=start)
        run.start()
        assert not started.wait(0.5)
    run.join()
    assert started.is_set() and said[0].startswith("waiting for a collection to end") and len(said) == 1
    assert storage.children("gc/starting") == []


@pytest.mark.timeout(60)
def test_many_runs_start_while_collectors_work_and_none_loses_a_step(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free interleavings: a run that has started finds every step either whole or not done at all."""
    monkeypatch.setattr(collection, "POLL_SECONDS", 0.01)
    broken: list[str] = []

    def start(index: int) -> None:
        recipe = load_recipe("demo", [f"stage2.seed={index % 2}"])
        steps = build_graph(recipe, PINS)
        for _ in range(6):
            with starting(storage, lambda text: None):
                record_run(storage, f"run-{index}", recipe, PINS, steps, [])
            for step in steps:
                store = StepStore(storage, step.key)
                if store.done(step):
                    broken.extend([step.key] * (not storage.exists(f"{step.key}/data")))
                else:
                    storage.write_bytes(f"{step.key}/data", b"x")
                    if step.milestone is None:
                        store.complete_receipt({"attempt": 1})
                    else:
                        store.publish_milestone(step.milestone, {})
            broken.extend(
                step.key for step in steps if not (store_done(step) and storage.exists(f"{step.key}/data"))
            )
            remove_run(storage, f"run-{index}")

    def store_done(step: object) -> bool:
        return StepStore(storage, step.key).done(step)  # type: ignore[attr-defined,arg-type]

    def gather() -> None:
        while any(thread.is_alive() for thread in runs):
            try:
                collect(storage, lambda item: None)
            except Superseded:
                time.sleep(0.01)
            except Exception as error:
                broken.append(f"a collector ended by {error!r}")
            time.sleep(0.02)

    runs = [threading.Thread(target=start, args=(index,)) for index in range(3)]
    collectors = [threading.Thread(target=gather) for _ in range(2)]
    for thread in [*runs, *collectors]:
        thread.start()
    for thread in [*runs, *collectors]:
        thread.join()
    assert not broken, broken


def test_a_removal_that_is_cut_short_leaves_a_step_done_and_whole_or_not_done(storage: Storage) -> None:
    for cut in range(8):
        _record(storage, "base")
        remove_run(storage, "base")

        class Killed(BaseException):
            pass

        class Cut(Storage):
            left = cut

            def delete(self, key: str) -> None:
                self._count()
                super().delete(key)

            def delete_tree(self, prefix: str) -> None:
                self._count()
                super().delete_tree(prefix)

            def _count(self) -> None:
                self.left -= 1
                if self.left < 0:
                    raise Killed

        tokenizer = build_graph(load_recipe("demo"), PINS)[0]
        item = Unnamed(key=tokenizer.key, kind="step", bytes=0)
        try:
            remove(Cut(storage.url), item)
        except Killed:
            if StepStore(storage, tokenizer.key).done(tokenizer):
                assert storage.exists(f"{tokenizer.key}/attempts/000001/data")
            continue
        assert not storage.keys(tokenizer.key)
        return
    raise AssertionError("never came to its end")


def test_a_run_that_someone_works_on_is_not_removed(storage: Storage) -> None:
    _record(storage, "base")
    lease = LeaseBook(storage, read_run(storage, "base")["steps"][0]["key"]).acquire("base")
    assert isinstance(lease, Lease)
    with (
        lease,
        pytest.raises(
            RecipeError, match=r"run: 'base' computes tokenizer now .* stop it first: ncp stop base"
        ),
    ):
        remove_run(storage, "base")
    assert list_runs(storage) == ["base"]


def test_names_that_leave_their_folder_are_refused(storage: Storage) -> None:
    for name in ("../up", "a/b", "", ".hidden", "a\0b"):
        with pytest.raises(RecipeError, match="is not a name"):
            remove_run(storage, name)
