"""Run records: small files that name steps, stops and the recipe. `{storage}/runs/{run}/run.json`.

A record is written once, before anything runs. It owns nothing: steps are shared between runs, and what may be
deleted is what no record names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from curriculum.errors import RecipeError
from curriculum.load import plain
from curriculum.schema import Recipe
from pipeline.dag.step import Step
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    """Remove the run's record, its log and its report. Its steps stay until nobody names them (jobs.collection).

    Raises RecipeError for a run that does not exist, or that someone works on.
    """
    for step in read_run(storage, run)["steps"]:
        held = StepStore(storage, step["key"]).held()
        if held is not None and held.run == run:
            raise RecipeError(
                f"run: {run!r} computes {step['name']} now ({held}); stop it first: ncp stop {run}"
            )
    for key in storage.keys(f"runs/{run}"):
        if key != _key(run):
            storage.delete(key)
    storage.delete(
        _key(run)
    )  # last: until then the run is listed, and removing it again completes the removal
    storage.delete_tree(f"runs/{run}")


def read_run(storage: Storage, run: str) -> dict[str, Any]:
    """The record. Raises RecipeError for a run that does not exist."""
    check_run_name(run, "run")
    try:
        return storage.read_json(_key(run))
    except FileNotFoundError:
        known = ", ".join(list_runs(storage)) or "none yet"
        raise RecipeError(f"run: {run!r} does not exist in {storage.url}; runs there: {known}") from None


def list_runs(storage: Storage) -> list[str]:
    """Names of all runs, sorted."""
    return [name for name in storage.children("runs") if storage.exists(_key(name))]


def run_records(storage: Storage) -> Iterator[dict[str, Any]]:
    """The records of all runs there are, by name. One that is removed while they are read is left out."""
    for run in list_runs(storage):
        try:
            yield storage.read_json(_key(run))
        except FileNotFoundError:
            continue


def named_milestones(storage: Storage, step_key: str) -> set[int]:
    """Milestones of one trajectory at which some run's stage stops."""
    return {
        step["milestone"]
        for record in run_records(storage)
        for step in record["steps"]
        if step["key"] == step_key and step["milestone"] is not None
    }


def _key(run: str) -> str:
    return f"runs/{run}/run.json"
