"""Run records: shared steps, conflicts of explicit names, and what runs keep alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.graph import build_graph
from jobs.runs import record as runs
from jobs.runs.record import list_runs, named_milestones, read_run, record_run, run_records
from pipeline.storage import Storage

PINS = {"stdlib-code": "c" * 64, "stdlib-prose": "d" * 64}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _record(storage: Storage, name: str, *overrides: str) -> None:
    recipe = load_recipe("demo", overrides)
    record_run(storage, name, recipe, PINS, build_graph(recipe, PINS), overrides)


def test_recording_the_same_run_again_is_a_resume(storage: Storage) -> None:
    _record(storage, "mine")
    created = read_run(storage, "mine")["created"]
    _record(storage, "mine", "runtime.num_workers=1")
    assert read_run(storage, "mine")["created"] == created


def test_an_explicit_name_of_something_else_is_refused_and_kept(storage: Storage) -> None:
    _record(storage, "mine")
    with pytest.raises(
        RecipeError, match=r"--name: 'mine' already names a run of recipe 'demo' .* choose another"
    ):
        _record(storage, "mine", "stage2.optimizer.lr=0.001")
    assert read_run(storage, "mine")["overrides"] == []


def test_an_unknown_run_names_the_known_ones(storage: Storage) -> None:
    _record(storage, "mine")
    with pytest.raises(RecipeError, match=r"'yours' does not exist .*: mine"):
        read_run(storage, "yours")


def test_milestones_that_any_run_stops_at_are_named(storage: Storage) -> None:
    _record(storage, "short")
    _record(storage, "long", "stage1.tokens=1228800")
    assert list_runs(storage) == ["long", "short"]
    key = next(step["key"] for step in read_run(storage, "short")["steps"] if step["name"] == "stage1")
    assert named_milestones(storage, key) == {200, 300}


def test_a_run_that_is_removed_while_records_are_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention and `ncp gc` read all records; `ncp runs rm` beside them must not end a training or a collection."""
    storage = Storage(str(tmp_path))
    for run in ("a", "b"):
        storage.write_json(f"runs/{run}/run.json", {"run": run, "recipe": {"recipe": "demo"}, "steps": []})
    monkeypatch.setattr(runs, "list_runs", lambda storage: ["a", "gone", "b"])
    assert [record["run"] for record in run_records(storage)] == ["a", "b"]
    assert named_milestones(storage, "steps/s") == set()
