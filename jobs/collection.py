"""`ncp gc`: remove what no run names, never what a live lease or another run uses.

A collector and a starting run meet in storage. A run that starts first announces itself (`gc/starting/`), then looks
for a collector and waits for its end, then pins its sources and writes its record; only then does it ask what is done.
A collector first takes the lease `gc/collector`, gives it back if a run is starting (so that the two never wait for each
other), and only then reads the records. Whatever the order of these steps, either the collector reads the record and keeps what it names, or the run begins after the
collection. So no run ever relies on an output that is being removed, and two collectors exclude each other.

A step is removed in an order that is safe to be killed in: leases and seal, then receipt and milestones (from here on it
is not done), then every other record, then the data.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from curriculum.load import build
from curriculum.schema import SourceSpec
from jobs.runs import run_records
from jobs.training.initial_checkpoint import initial_pin_key
from pipeline.dag.lease import Held, Lease, LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.data.pins import pin_key
from pipeline.storage import Storage

COLLECTOR = "gc"
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Unnamed:
    """Something in storage that no run names."""

    key: str
    kind: str
    """`step`, `pin` or `source` (the laid-out text of a builtin source)."""
    bytes: int
    held: str = ""
    """Who is computing it now: then it stays."""


def unnamed(storage: Storage) -> list[Unnamed]:
    """Everything that no run names, as of now. Only reads."""
    keys, fingerprints, pins = set(), set(), set()
    for record in run_records(storage):
        keys |= {step["key"] for step in record["steps"]}
        fingerprints |= {step["fingerprint"] for step in record["steps"]}
        for source, spec in record["recipe"]["sources"].items():
            selected = build(SourceSpec, spec, f"sources.{source}")
            pins.add(pin_key(source, selected))
            if content := record.get("pins", {}).get(source):
                pins.add(pin_key(source, selected, content))  # the one this run used, if it was renewed since
        for origin in _initial_checkpoints(record):
            pins.add(initial_pin_key(origin))
            keys |= _pinned_step(storage, initial_pin_key(origin))
    found = []
    for name in storage.children("steps"):
        key = f"steps/{name}"
        if key in keys or _evaluates(storage, key, fingerprints):
            continue
        held = StepStore(storage, key).held()
        found.append(
            Unnamed(key=key, kind="step", bytes=storage.total_bytes(key), held=str(held) if held else "")
        )
    laid_out = {
        storage.read_json(f"pins/{name}").get("location", "")
        for name in storage.children("pins")
        if f"pins/{name}" in pins
    }
    for name in storage.children("pins"):
        if f"pins/{name}" not in pins:
            found.append(Unnamed(key=f"pins/{name}", kind="pin", bytes=storage.total_bytes(f"pins/{name}")))
    for name in storage.children("sources"):
        key = f"sources/{name}"
        if not any(place == key or place.startswith(f"{key}/") for place in laid_out):
            found.append(Unnamed(key=key, kind="source", bytes=storage.total_bytes(key)))
    return found


def collect(storage: Storage, on_removed: Callable[[Unnamed], None]) -> list[Unnamed]:
    """Remove everything unnamed; returns what stayed because someone computes it.

    A holder on another host counts as alive until its heartbeat was seen to stand still, so a collection that meets one
    watches it for the lease's time to live. Raises Superseded when another collector is at work.
    """
    while True:
        _await_starting(storage)
        lease = LeaseBook(storage, f"{COLLECTOR}/collector").acquire("ncp gc")
        if not isinstance(lease, Lease):
            raise Superseded(f"another collection is under way: {lease}")
        with lease:
            if _starting_now(storage):
                continue  # it may be waiting for us: runs go first
            return _collect(storage, lease, on_removed)


def _collect(storage: Storage, lease: Lease, on_removed: Callable[[Unnamed], None]) -> list[Unnamed]:
    items = unnamed(storage)
    books = {item.key: LeaseBook(storage, item.key) for item in items if item.kind == "step"}
    stayed = _held_to_the_end([item for item in items if item.held], books)
    for item in items:
        if item in stayed:
            continue
        if not lease.is_current():
            raise Superseded("this collection was paused for so long that another took over")
        remove(storage, item)
        on_removed(item)
    return stayed


def _held_to_the_end(items: list[Unnamed], books: dict[str, LeaseBook]) -> list[Unnamed]:
    """Those of `items` whose holder still lives after as long as a heartbeat may take."""
    give_up = time.monotonic() + max((books[item.key].ttl for item in items), default=0.0) + 1.0
    while True:
        items = [item for item in items if isinstance(books[item.key].look(), Held)]
        if not items or all(books[item.key].seen_alive for item in items) or time.monotonic() > give_up:
            return items
        time.sleep(POLL_SECONDS)


def remove(storage: Storage, item: Unnamed) -> None:
    """Delete it, completion first (see the module)."""
    if item.kind == "pin":
        storage.delete(item.key)
        return
    storage.delete_tree(f"{item.key}/lease")
    storage.delete(f"{item.key}/receipt.json")
    storage.delete_tree(f"{item.key}/milestones")
    for key in storage.keys(item.key):
        if key.endswith(".json"):
            storage.delete(key)
    storage.delete_tree(item.key)


@contextlib.contextmanager
def starting(storage: Storage, say: Callable[[str], None]) -> Iterator[None]:
    """The block pins sources and records a run; no collection goes on meanwhile. Waits for one that is under way."""
    key = f"{COLLECTOR}/starting/{uuid.uuid4().hex}"
    lease = LeaseBook(storage, key).acquire("starting")
    assert isinstance(lease, Lease)
    with lease:
        collector, told = LeaseBook(storage, f"{COLLECTOR}/collector"), False
        while isinstance(found := collector.look(), Held):
            if not told:
                say(f"waiting for a collection to end ({found})")
                told = True
            time.sleep(POLL_SECONDS)
        yield
    storage.delete_tree(key)


def _starting_now(storage: Storage) -> bool:
    """Whether a run has announced itself and lives. An announcement without a lease yet will look for us itself."""
    names = storage.children(f"{COLLECTOR}/starting")
    return any(_alive(LeaseBook(storage, f"{COLLECTOR}/starting/{name}")) for name in names)


def _alive(announcement: LeaseBook) -> bool:
    """Whether the run that announced itself still starts; one that has started takes its announcement away."""
    try:
        return isinstance(announcement.look(), Held)
    except FileNotFoundError:
        return False


def _await_starting(storage: Storage) -> None:
    """Wait until every run that is starting has written its record, or is gone; clear away the latter's traces."""
    names = storage.children(f"{COLLECTOR}/starting")
    books = {name: LeaseBook(storage, f"{COLLECTOR}/starting/{name}") for name in names}
    while any(_alive(book) for book in books.values()):
        time.sleep(POLL_SECONDS)
    for name, book in books.items():
        if book.highest():
            storage.delete_tree(f"{COLLECTOR}/starting/{name}")


def _initial_checkpoints(record: Mapping[str, Any]) -> set[str]:
    """Names in `init.from` that are no stage of the run: checkpoints from outside it."""
    stages = record["recipe"]["stages"]
    return {stage["init"]["from"] for stage in stages.values()} - {None, *stages}


def _pinned_step(storage: Storage, key: str) -> set[str]:
    """The trajectory that a checkpoint's pin points to, which may lie in this very storage."""
    if not storage.exists(key):
        return set()
    return {storage.read_json(key)["checkpoint"]["step_key"]} - {""}


def _evaluates(storage: Storage, key: str, fingerprints: set[str]) -> bool:
    """Whether it is an evaluation (by `ncp eval`, which no run names) of a trajectory that a run names."""
    identity = StepStore(storage, key).identity()
    return (
        identity is not None
        and identity["kind"] == "evaluation"
        and identity["identity"]["trajectory"] in fingerprints
    )
