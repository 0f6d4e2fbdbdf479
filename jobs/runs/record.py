"""Run records: small files that name steps, stops and the recipe. `{storage}/runs/{run}/run.json`.

A record is written once, before anything runs. It owns nothing: steps are shared between runs, and what may be
deleted is what no record names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.errors import InputError, RecipeError
from curriculum.load import plain
from curriculum.schema import Recipe
from jobs.runs.recorded import checked_record
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class UnknownRun(RecipeError):
    """There is no run of that name."""


@dataclass(frozen=True, kw_only=True)
class UnreadableRun:
    """A run whose record cannot be read: damaged, or of a version that says things otherwise."""

    run: str
    reason: str
    """One line that names the record."""


def check_run_name(name: str, option: str = "--name") -> None:
    """Raise RecipeError for a name that could not be a folder of its own."""
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{option}: {name!r} is not a name; use letters, digits, '-', '_' and '.'")


def record_run(
    storage: Storage,
    run: str,
    recipe: Recipe,
    pins: dict[str, str],
    steps: Sequence[Step],
    overrides: Sequence[str],
) -> None:
    """Write the run's record, or check that an existing one asks for the same.

    Raises RecipeError when `run` already names something else (only an explicit --name can).
    """
    record = {
        "run": run,
        "recipe": plain(recipe),
        "overrides": list(overrides),
        "pins": pins,
        "steps": [
            {
                "name": step.name,
                "kind": step.kind,
                "key": step.key,
                "fingerprint": step.fingerprint,
                "milestone": step.milestone,
                "needs": list(step.needs),
                "evaluates": step.identity["step"] if step.kind == "evaluation" else None,
            }
            for step in steps
        ],
        "stages": list(recipe.stages),
        "created": time.time(),
    }
    if storage.create_json(_key(run), record):
        return
    existing = read_run(storage, run)
    wanted = [[step["name"], step["fingerprint"], step["milestone"]] for step in record["steps"]]
    if [[step["name"], step["fingerprint"], step["milestone"]] for step in existing["steps"]] != wanted:
        raise RecipeError(
            f"--name: {run!r} already names a run of recipe {existing['recipe']['recipe']!r} with other steps; "
            "choose another name, or leave --name out"
        )


def remove_run(storage: Storage, run: str) -> None:
    """Remove the run's record, its log and its report. Its steps stay until nobody names them (jobs.runs.garbage).

    One whose record cannot be read is removed too: every step there is, is asked whether that run computes it.
    Raises RecipeError for a run that does not exist, or that someone works on.
    """
    try:
        named = {step["key"]: step["name"] for step in read_run(storage, run)["steps"]}
    except DamagedRecord:
        named = {f"steps/{name}": name for name in storage.children("steps")}
    for key, name in named.items():
        held = StepStore(storage, key).held()
        if held is not None and held.run == run:
            raise RecipeError(f"run: {run!r} computes {name} now ({held}); stop it first: ncp stop {run}")
    for key in storage.keys(f"runs/{run}"):
        if key != _key(run):
            storage.delete(key)
    storage.delete(
        _key(run)
    )  # last: until then the run is listed, and removing it again completes the removal
    storage.delete_tree(f"runs/{run}")


def read_run(storage: Storage, run: str) -> dict[str, Any]:
    """The record, with its stages in the order of the curriculum.

    Raises UnknownRun for a run that does not exist, DamagedRecord for a record that cannot be read.
    """
    check_run_name(run, "run")
    try:
        record = storage.read_json(_key(run))
    except FileNotFoundError:
        known = ", ".join(list_runs(storage)) or "none yet"
        raise UnknownRun(f"run: {run!r} does not exist in {storage.url}; runs there: {known}") from None
    return checked_record(record, storage.uri(_key(run)))


def list_runs(storage: Storage) -> list[str]:
    """Names of all runs, sorted."""
    return [name for name in storage.children("runs") if storage.exists(_key(name))]


def all_runs(storage: Storage) -> Iterator[dict[str, Any] | UnreadableRun]:
    """Every run there is, by name: its record, or why it has none. One that is removed meanwhile is left out."""
    for run in list_runs(storage):
        try:
            check_run_name(run, "run")
            yield checked_record(storage.read_json(_key(run)), storage.uri(_key(run)))
        except FileNotFoundError:
            continue
        except InputError as error:
            yield UnreadableRun(run=run, reason=str(error))


def run_records(storage: Storage) -> Iterator[dict[str, Any]]:
    """The records of all runs that can be read. What must not miss a run asks `all_runs`."""
    return (record for record in all_runs(storage) if not isinstance(record, UnreadableRun))


def named_milestones(storage: Storage, step_key: str) -> set[int]:
    """Milestones of one trajectory at which some run's stage stops: all there are, while a run's record cannot be read."""
    named: set[int] = set()
    for record in all_runs(storage):
        if isinstance(record, UnreadableRun):
            return set(StepStore(storage, step_key).milestones())
        named |= {
            step["milestone"]
            for step in record["steps"]
            if step["key"] == step_key and step["milestone"] is not None
        }
    return named


def _key(run: str) -> str:
    return f"runs/{run}/run.json"
