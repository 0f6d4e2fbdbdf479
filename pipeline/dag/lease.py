"""Numbered leases: at most one attempt of a step may publish, whatever crashes and wherever.

`lease/000001.json`, `lease/000002.json`, ... are created exclusively; the highest number holds the step. The holder
overwrites `000002.beat` every few seconds. Another runner creates the next number

- at once, when the holder left `000002.end`, or was a process of this boot of this host and is gone;
- after the heartbeat has stood still for `ttl` seconds on the *observer's own* monotonic clock (no two clocks are
  ever compared). Only time in which the observer itself was answered counts: while storage is away nobody can beat and
  nobody can take over, so a lease outlives an outage of any length.

Publishing a receipt is itself the creation of the next number, holding the receipt: it *seals* the step. Of a
take-over and a publication exactly one succeeds, so a superseded attempt cannot publish, not even in a race. The
sealed receipt is then copied to `receipt.json`; a crash between the two is repaired by whoever looks next.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

from pipeline.answers import patience
from pipeline.dag.holder import Holder
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

HEARTBEAT_SECONDS = 2.0
TTL_SECONDS = 30.0
LONGEST_GAP = 1 / 3
"""Of the TTL: what the time between two looks counts for at most, however long the second was waited for."""
BEAT_SECONDS, ANSWER_SECONDS = 20.0, 4.0
"""How long a heartbeat waits for storage, and for one answer: short, to beat again soon after an outage."""


class Superseded(RuntimeError):
    """Another attempt has taken this step over; this one must stop without publishing anything."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """The step is held by someone else who may be alive."""

    number: int
    run: str
    holder: Holder

    def __str__(self) -> str:
        return f"held by run {self.run} ({self.holder}, attempt {self.number})"


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """The step is finished; `receipt` is what its attempt published."""

    receipt: dict[str, Any]


_FOREIGN: set[tuple[str, str, str]] = set()


def numbered(storage: Storage, prefix: str, *, digits: int) -> list[int]:
    """The numbers of the records below `prefix`, ascending. What has another name is not ours: it is left alone, and named once."""
    found = []
    for name in storage.children(prefix):
        stem, _, suffix = name.partition(".")
        if len(stem) == digits and stem.isascii() and stem.isdigit():
            if suffix == "json":
                found.append(int(stem))
        elif suffix.endswith("json") and (foreign := (storage.url, prefix, name)) not in _FOREIGN:
            _FOREIGN.add(foreign)
            warnings.warn(f"{storage.uri(f'{prefix}/{name}')}: not written by ncp, ignored", stacklevel=2)
    return sorted(found)


class LeaseBook:
    """The leases of one step directory, as seen by one observer. Remembers heartbeats between looks."""

    def __init__(self, storage: Storage, step_key: str, *, ttl: float = TTL_SECONDS):
        self.storage = storage
        self.prefix = f"{step_key}/lease"
        self.ttl = ttl
        self._last_beat: tuple[int, bytes] | None = None
        self._last_look = 0.0
        self._still = 0.0
        """Seconds for which the heartbeat was seen to stand still."""
        self.seen_alive = False
        """Whether this observer has seen the heartbeat of the present holder change."""

    def highest(self) -> int:
        """The highest lease number, 0 when the step was never held."""
        return max(numbered(self.storage, self.prefix, digits=6), default=0)

    def look(self) -> Held | Sealed | None:
        """The living holder, the seal, or None when the step is free to take."""
        return self._look(self.highest())

    def _look(self, number: int) -> Held | Sealed | None:
        if number == 0:
            return None
        try:
            record = self.storage.read_json(self._key(number, "json"))
        except DamagedRecord:
            if self.storage.exists(self._key(number, "end")):
                return None  # it is over, whoever held it
            raise
        if "receipt" in record:
            return Sealed(receipt=record["receipt"])
        held = Held(number=number, run=record["run"], holder=Holder(**record["holder"]))
        if self.storage.exists(self._key(number, "end")) or held.holder.gone() or self._stands_still(number):
            return None
        return held

    def acquire(self, run: str) -> Lease | Held | Sealed:
        """Take the step if it is free. Never blocks; call again later when Held."""
        while True:
            number = self.highest()
            found = self._look(number)
            if found is not None:
                return found
            record = {"run": run, "holder": Holder.here().record(), "at": time.time()}
            if self.storage.create_json(self._key(number + 1, "json"), record):
                return Lease(self, number + 1)

    def _stands_still(self, number: int) -> bool:
        try:
            beat = self.storage.read_bytes(self._key(number, "beat"))
        except FileNotFoundError:
            beat = b""
        now = time.monotonic()
        gap, self._last_look = now - self._last_look, now
        if self._last_beat != (number, beat):
            self.seen_alive = self._last_beat is not None and self._last_beat[0] == number
            self._last_beat, self._still = (number, beat), 0.0
        else:
            self._still += min(gap, self.ttl * LONGEST_GAP)
        return self._still > self.ttl

    def _key(self, number: int, suffix: str) -> str:
        return f"{self.prefix}/{number:06d}.{suffix}"


class Lease:
    """A held lease. Use as a context manager: it beats in a thread, and is ended on the way out."""

    def __init__(self, book: LeaseBook, number: int):
        self.book = book
        self.number = number
        self._stop = threading.Event()
        self._over = threading.Event()
        """Set once a higher number exists, ours or another's: there is nothing left to end."""
        self._thread = threading.Thread(target=self._beat, name=f"lease-{number}", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(BEAT_SECONDS + ANSWER_SECONDS)
        if not self._over.is_set():
            # Not written: then the heartbeat, which stands still from now on, tells the others a little later.
            with contextlib.suppress(Exception), patience(BEAT_SECONDS, ANSWER_SECONDS):
                self.book.storage.write_bytes(self.book._key(self.number, "end"), b"")

    def is_current(self) -> bool:
        """Whether no higher number exists, asked of storage now."""
        return self.book.highest() == self.number

    def seal(self, receipt: dict[str, Any]) -> None:
        """Publish `receipt` as the step's end. Raises Superseded when another attempt took the step over."""
        sealed = self.book.storage.create_json(self.book._key(self.number + 1, "json"), {"receipt": receipt})
        self._over.set()
        if not sealed:
            raise Superseded(
                f"attempt {self.number} of {self.book.prefix}: superseded; nothing was published"
            )

    def _beat(self) -> None:
        """The lease's own creation is the first sign of life; the first beat follows it by an interval."""
        count = 0
        while not self._stop.wait(HEARTBEAT_SECONDS):
            count += 1
            # A missed beat is what the TTL is for; the next one tries again.
            with contextlib.suppress(Exception), patience(BEAT_SECONDS, ANSWER_SECONDS):
                self.book.storage.write_bytes(self.book._key(self.number, "beat"), str(count).encode())
                if not self._over.is_set() and not self.is_current():
                    self._over.set()
