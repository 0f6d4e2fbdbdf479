"""Retention deletes milestones while others read them: what is read stays until it was read, and nobody takes a gap for damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from jobs.export import export_checkpoint
from jobs.runs.checkpoint_ref import find_checkpoint
from jobs.runs.record import list_runs
from jobs.runs.retention import Retention
from jobs.training import milestones
from jobs.training.load_checkpoint import load_soundest
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.faults.trajectories import STOP

READ = 20
"""A milestone that is neither the first nor the last."""


@pytest.fixture
def storage(uninterrupted: Path, tmp_path: Path) -> Storage:
    shutil.copytree(uninterrupted, tmp_path / "store")
    return Storage(str(tmp_path / "store"))


def _while_reading(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen when a reader has found and pinned its milestone and is about to read it."""
    load = milestones.load_milestone

    def interrupted(*arguments, **options):
        happens()
        return load(*arguments, **options)

    monkeypatch.setattr(milestones, "load_milestone", interrupted)


def test_an_export_keeps_what_it_reads_and_nothing_longer(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = list_runs(storage)
    reference = find_checkpoint(storage, f"{run}/stage1@{READ}")
    retention = Retention(storage, reference.step_key, keep=1)
    _while_reading(monkeypatch, lambda: retention.prune(1))
    written = export_checkpoint(storage, reference, tmp_path / "out", "float32")
    assert written.step == READ and (tmp_path / "out" / "config.json").exists()
    assert StepStore(storage, reference.step_key).milestones() == [0, READ, STOP], "the others went"
    retention.prune(1)
    assert StepStore(storage, reference.step_key).milestones() == [0, STOP]


def test_one_that_went_before_it_was_pinned_is_not_called_damaged(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = list_runs(storage)
    newest_then = find_checkpoint(storage, f"{run}/stage1", before=READ + 1)
    named = find_checkpoint(storage, f"{run}/stage1@{READ}")
    assert (newest_then.step, named.step) == (READ, READ)
    data = f"{named.step_key}/checkpoints/{READ:09d}-a000001"
    store = StepStore(storage, named.step_key)
    _while_reading(monkeypatch, lambda: (store.retract_milestone(READ), storage.delete_tree(data)))
    read, _, _ = load_soundest(storage, newest_then)
    assert read.step == STOP and capsys.readouterr().err == ""
    with pytest.raises(
        RecipeError, match=rf"stage1@{READ}': deleted by the run that goes on; it has 0, 30, {STOP}"
    ):
        load_soundest(storage, named)
