"""`ncp verify`: everything durable that a run names, held against the digests that were made while it was written.

Records prove themselves (pipeline.records), and so do log parts and metric segments; shards, milestones, tokenizers, laid-out
text and reports are proved by the record that vouches for them. What no digest covers is counted and said: heartbeats,
and stacks decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from curriculum.errors import InputError
from curriculum.schema import Recipe
from jobs.runs.checkpoint_files import DamagedMilestone, milestone_problem, read_tokenizer_file
from jobs.runs.initial_checkpoint import initial_names, initial_pin_key
from jobs.runs.metric_log import read_segment
from jobs.runs.record import read_run
from jobs.runs.recorded import recorded_recipe
from jobs.runs.retention import csv_problem
from jobs.runs.set_aside import check_marker, set_aside
from pipeline.dag.store import StepStore
from pipeline.data.manifest import Manifest
from pipeline.data.pins import load_pin, pin_key
from pipeline.data.verified import hash_object
from pipeline.records import DamagedRecord, unseal_lines
from pipeline.storage import Storage

UNPROVED = (".beat", ".end", ".txt")
"""Ends of names that no digest covers, where they are no log part: nothing is decided by them."""


@dataclass(kw_only=True)
class Verified:
    """What was held against its digest, by kind, and what was wrong."""

    proved: Counter[str] = field(default_factory=Counter)
    unproved: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """One line each, naming the file."""
    damaged_milestones: list[DamagedMilestone] = field(default_factory=list)

    def check(self, kind: str, look: Callable[[], Any]) -> Any:
        """The result of `look`, counted; None and a problem where it finds damage."""
        try:
            found = look()
        except (InputError, FileNotFoundError) as error:
            self.problems.append(str(error))
            return None
        self.proved[kind] += 1
        return found


def verify_run(storage: Storage, run: str) -> Verified:
    """Read everything that `run` names. Raises RecipeError for a run that does not exist, DamagedRecord for a bad record."""
    record = read_run(storage, run)
    found = Verified()
    for key in storage.keys(f"runs/{run}"):
        _file(storage, key, found)
    _pins(storage, recorded_recipe(record), found)
    for step in record["steps"]:
        _step(storage, step["kind"], step["key"], found)
    return found


def set_damaged_aside(storage: Storage, run: str, found: Verified) -> Iterator[str]:
    """Take away the markers of damaged milestones that nobody computes on now, so that they are made again; says what that costs."""
    record = read_run(storage, run)
    stages = recorded_recipe(record).stages
    names = {step["key"]: step["name"] for step in record["steps"]}
    for damage in found.damaged_milestones:
        held = StepStore(storage, damage.step_key).held()
        if held is not None:
            yield f"{damage.step_key}: {held}; its next attempt passes the damaged milestone over by itself"
            continue
        batch = stages[names[damage.step_key]].global_batch_tokens
        yield set_aside(storage, damage, batch_tokens=batch, attempt=0, run=run)


def _pins(storage: Storage, recipe: Recipe, found: Verified) -> None:
    for name, spec in recipe.sources.items():
        if not storage.exists(pin_key(name, spec)):
            continue
        pin = found.check("pin", lambda name=name, spec=spec: load_pin(storage, name, spec, None))
        if pin is not None and pin.builtin:
            for file in pin.files:
                key = f"{pin.location}/{file.path}"
                found.check("laid-out text", lambda key=key, want=file.sha256: _same(storage, key, want))
    for name in initial_names(recipe):
        key = initial_pin_key(name)
        if storage.exists(key):
            found.check("pin", lambda key=key: storage.read_json(key))


def _step(storage: Storage, kind: str, step_key: str, found: Verified) -> None:
    keys = storage.keys(step_key)
    under_digest = {f"{step_key}/manifest.json", f"{step_key}/shards.arrow"}
    for key in keys:
        rest = key.removeprefix(f"{step_key}/")
        if (
            rest.startswith(("checkpoints/", "data/", "heldout/", "milestones/", "dedup/"))
            or key in under_digest
        ):
            continue
        if rest.startswith("metrics/") and rest.endswith(".jsonl"):
            found.check("metric segment", lambda key=key: read_segment(storage, key))
        elif not rest.endswith((".arrow", ".html")) and not rest.endswith("tokenizer.json"):
            _file(storage, key, found)
    receipt = None
    if f"{step_key}/receipt.json" in keys:
        receipt = found.check("receipt", lambda: StepStore(storage, step_key).receipt())
    match kind:
        case "shards" if f"{step_key}/manifest.json" in keys:
            manifest = found.check("manifest", lambda: Manifest.load(storage, step_key))
            if manifest is not None:
                for entry in (*manifest.shards, *manifest.heldout):
                    key = f"{step_key}/{entry.key}"
                    found.check("shard", lambda key=key, want=entry.sha256: _same(storage, key, want))
        case "tokenizer" if receipt:
            digest = receipt.get("sha256", "")
            found.check("tokenizer", lambda: read_tokenizer_file(storage, receipt["tokenizer"], digest))
        case "cleaning" if receipt:
            for file in receipt["pin"]["files"]:
                key = f"{receipt['pin']['location']}/{file['path']}"
                found.check("cleaned text", lambda key=key, want=file["sha256"]: _same(storage, key, want))
        case "report" if receipt and receipt.get("sha256"):
            found.check("report", lambda: _same(storage, receipt["report"], receipt["sha256"]))
        case "stage":
            _milestones(storage, step_key, found)


def _milestones(storage: Storage, step_key: str, found: Verified) -> None:
    for step in StepStore(storage, step_key).milestones():
        try:
            check_marker(storage, step_key, step)
            marker = StepStore(storage, step_key).milestone(step)
            problem = milestone_problem(storage, marker) if marker is not None else ""
            if problem:
                raise DamagedMilestone(f"milestone {step} of {step_key}: {problem}", step_key, step)
        except DamagedMilestone as damage:
            found.problems.append(str(damage))
            found.damaged_milestones.append(damage)
            continue
        found.proved["milestone"] += 1


def _file(storage: Storage, key: str, found: Verified) -> None:
    name = key.rpartition("/")[2]
    if name.endswith(".json"):
        found.check("record", lambda: storage.read_json(key))
    elif "/log/" in key and name.endswith(".txt"):
        found.check("log part", lambda: unseal_lines(storage.read_bytes(key), storage.uri(key)))
    elif "/quarantine/" in key:
        found.check("quarantine", lambda: unseal_lines(storage.read_bytes(key), storage.uri(key)))
    elif name == "checkpoints.csv":
        found.check("checkpoints.csv", lambda: _table(storage, key))
    else:
        ending = next((ending for ending in UNPROVED if name.endswith(ending)), "other")
        found.unproved[ending] += 1


def _table(storage: Storage, key: str) -> None:
    problem = csv_problem(storage.read_bytes(key).decode(errors="replace"))
    if problem:
        raise DamagedRecord(f"{storage.uri(key)}: {problem}")


def _same(storage: Storage, key: str, sha256: str) -> None:
    """Raise DamagedRecord when the object is not the one of that digest."""
    if hash_object(storage, key)[1] != sha256:
        raise DamagedRecord(f"{storage.uri(key)}: has another sha256 than when it was written; it is damaged")
