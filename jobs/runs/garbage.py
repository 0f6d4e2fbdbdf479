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
from dataclasses import dataclass, replace
from typing import Any

from curriculum.errors import InputError
from jobs.runs.initial_checkpoint import initial_pin_key
from jobs.runs.record import UnreadableRun, all_runs
from jobs.runs.recorded import reading, recorded_recipe, unknown_keys
from pipeline.dag.lease import Held, Lease, LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.data.pins import pin_key
from pipeline.records import DamagedRecord
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
    kept: str = ""
    """Which record cannot be read that may name it: then it stays too."""


@dataclass
class _Named:
    """What the records of all runs name; `unread` says which records cannot be read, so that this is not all."""

    keys: set[str]
    fingerprints: set[str]
    pins: set[str]
    places: set[str]
    """Where pinned builtin text is laid out."""
    unread: list[str]


def unnamed(storage: Storage) -> list[Unnamed]:
    """Everything that no run names, as of now. Only reads.

    While one record that may name something cannot be read, all of it is marked as kept, and says which record that is.
    """
    named = _named(storage)
    found = []
    for name in storage.children("steps"):
        key = f"steps/{name}"
        if key in named.keys:
            continue
        kept, held = "", None
        try:
            with reading(storage.uri(key)):
                if _evaluates(storage, key, named.fingerprints):
                    continue
                held = StepStore(storage, key).held()
        except DamagedRecord as error:
            kept = str(error)
        size = storage.total_bytes(key)
        found.append(Unnamed(key=key, kind="step", bytes=size, held=str(held) if held else "", kept=kept))
    for name in storage.children("pins"):
        if f"pins/{name}" not in named.pins:
            found.append(Unnamed(key=f"pins/{name}", kind="pin", bytes=storage.total_bytes(f"pins/{name}")))
    for name in storage.children("sources"):
        key = f"sources/{name}"
        if not any(place == key or place.startswith(f"{key}/") for place in named.places):
            found.append(Unnamed(key=key, kind="source", bytes=storage.total_bytes(key)))
    if not named.unread:
        return found
    why = f"it may be named by {'; '.join(named.unread)}"
    return [replace(item, kept=item.kept or why) for item in found]


def _named(storage: Storage) -> _Named:
    named = _Named(keys=set(), fingerprints=set(), pins=set(), places=set(), unread=[])
    for record in all_runs(storage):
        if isinstance(record, UnreadableRun):
            named.unread.append(record.reason)
            continue
        named.keys |= {step["key"] for step in record["steps"]}
        named.fingerprints |= {step["fingerprint"] for step in record["steps"]}
        try:
            _add_pins(storage, record, named)
        except InputError as error:
            named.unread.append(str(error))
    for name in storage.children("pins"):
        if f"pins/{name}" in named.pins:
            try:
                with reading(storage.uri(f"pins/{name}")):
                    named.places.add(storage.read_json(f"pins/{name}").get("location", ""))
            except DamagedRecord as error:
                named.unread.append(str(error))
    return named


def _add_pins(storage: Storage, record: Mapping[str, Any], named: _Named) -> None:
    """Add what the run's sources and checkpoints are pinned under. Raises DamagedRecord when that cannot be told."""
    if not all(step["fingerprint"] for step in record["steps"]):
        raise DamagedRecord(f"run {record['run']!r}: its record lacks the fingerprints of its steps")
    of_sources = [key for key in unknown_keys(record) if key.startswith("sources.")]
    if of_sources:
        raise DamagedRecord(
            f"run {record['run']!r}: recorded by another version, unknown here: {', '.join(of_sources)}"
        )
    for source, spec in recorded_recipe(record).sources.items():
        named.pins.add(pin_key(source, spec))
        if content := record.get("pins", {}).get(source):
            named.pins.add(pin_key(source, spec, content))  # the one this run used, if it was renewed since
    with reading(f"init of run {record['run']!r}"):
        for origin in _initial_checkpoints(record):
            named.pins.add(initial_pin_key(origin))
            named.keys |= _pinned_step(storage, initial_pin_key(origin))


def collect(storage: Storage, on_removed: Callable[[Unnamed], None]) -> list[Unnamed]:
    """Remove everything unnamed; returns what stayed because someone computes it, or an unreadable record may name it.

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
    found = unnamed(storage)
    kept, items = [item for item in found if item.kept], [item for item in found if not item.kept]
    books = {item.key: LeaseBook(storage, item.key) for item in items if item.kind == "step"}
    stayed = _held_to_the_end([item for item in items if item.held], books)
    for item in items:
        if item in stayed:
            continue
        if not lease.is_current():
            raise Superseded("this collection was paused for so long that another took over")
        remove(storage, item)
        on_removed(item)
    return [*stayed, *kept]


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
