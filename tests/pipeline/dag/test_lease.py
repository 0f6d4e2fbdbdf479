"""Leases: one holder, take-over of the dead, and no publication by the superseded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dag import lease as lease_module
from pipeline.dag.holder import Holder
from pipeline.dag.lease import Held, Lease, LeaseBook, Sealed, Superseded
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def _take(book: LeaseBook) -> Lease:
    lease = book.acquire("a-run")
    assert isinstance(lease, Lease)
    return lease


def _elsewhere(storage: Storage, number: int) -> None:
    """A lease of a process on another host, of which only the heartbeat can tell."""
    holder = Holder(host="other", boot="another-boot", namespace="pid:[1]", pid=1, started="1")
    storage.create_json(
        f"s/lease/{number:06d}.json", {"run": "other-run", "holder": holder.record(), "at": 0}
    )


def test_a_free_step_is_taken_and_then_held(storage: Storage) -> None:
    lease = _take(LeaseBook(storage, "s"))
    assert lease.number == 1
    found = LeaseBook(storage, "s").acquire("b-run")
    assert isinstance(found, Held) and found.run == "a-run"


def test_a_lease_that_was_ended_is_taken_at_once(storage: Storage) -> None:
    with _take(LeaseBook(storage, "s")):
        pass
    assert _take(LeaseBook(storage, "s")).number == 2


def test_a_damaged_record_stands_in_nobodys_way_once_its_lease_is_over(storage: Storage) -> None:
    record = "s/lease/000001.json"
    with _take(LeaseBook(storage, "s")):
        good = storage.read_bytes(record)
        storage.write_bytes(record, good[:-3])
        with pytest.raises(DamagedRecord, match=r"000001\.json"):  # it may be held, or a seal
            LeaseBook(storage, "s").look()
        storage.write_bytes(record, good)
    storage.write_bytes(record, good[:-3])
    assert LeaseBook(storage, "s").look() is None
    assert _take(LeaseBook(storage, "s")).number == 2


def test_a_holder_whose_process_was_killed_is_replaced_at_once(storage: Storage) -> None:
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_hold_for_ever, args=(storage,))
    child.start()
    while LeaseBook(storage, "s").highest() == 0:
        pass
    assert isinstance(LeaseBook(storage, "s").acquire("b"), Held)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert _take(LeaseBook(storage, "s")).number == 2


def _hold_for_ever(storage: Storage) -> None:
    with _take(LeaseBook(storage, "s")):
        threading.Event().wait()


def test_another_process_with_the_same_pid_is_not_the_holder(storage: Storage) -> None:
    me = Holder.here()
    impostor = Holder(**{**me.record(), "started": "0"})
    assert not me.gone()
    assert impostor.gone()


def test_a_holder_elsewhere_is_believed_until_its_heartbeat_stands_still(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: now)
    _elsewhere(storage, 1)
    book = LeaseBook(storage, "s", ttl=30)
    assert isinstance(book.acquire("b"), Held)
    now += 29
    storage.write_bytes("s/lease/000001.beat", b"1")
    assert isinstance(book.acquire("b"), Held)
    for _ in range(29):
        now += 1
        assert isinstance(book.acquire("b"), Held)
    now += 2
    assert _take(book).number == 2


def test_an_observer_that_was_not_answered_counts_no_standing_still(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: now)
    _elsewhere(storage, 1)
    book = LeaseBook(storage, "s", ttl=30)
    assert isinstance(book.acquire("b"), Held)
    now += 600  # storage was away: this look waited, and so did the holder's heartbeat
    assert isinstance(book.acquire("b"), Held)
    now += 5
    storage.write_bytes("s/lease/000001.beat", b"1")
    assert isinstance(book.acquire("b"), Held)


def test_records_of_somebody_else_are_ignored_and_named(storage: Storage) -> None:
    lease = _take(LeaseBook(storage, "s"))
    store = StepStore(storage, "s")
    store.publish_milestone(40, {"step": 40})
    store.write_failure(1, {"error": "x"})
    for folder in ("lease", "milestones", "failures", "progress"):
        for name in (
            "notes.json",
            "000001 (copy).json",
            "99999999999.json",
            "000002.json.bak",
            "-00001.json",
        ):
            storage.write_bytes(f"s/{folder}/{name}", b"{}")
    with pytest.warns(UserWarning, match=r"lease/notes\.json: not written by ncp, ignored"):
        assert LeaseBook(storage, "s").highest() == 1
    with pytest.warns(UserWarning, match=r"milestones/notes\.json"):
        assert store.milestones() == [40]
    with pytest.warns(UserWarning, match=r"failures/notes\.json"):
        failure = store.failure()
    assert failure is not None and failure["attempt"] == 1
    with pytest.warns(UserWarning, match=r"progress/notes\.json"):
        assert store.progress() is None
    assert lease.is_current()


def test_a_superseded_attempt_knows_and_cannot_publish(storage: Storage) -> None:
    first = _take(LeaseBook(storage, "s"))
    assert first.is_current()
    _elsewhere(storage, 2)
    assert not first.is_current()
    with pytest.raises(Superseded):
        first.seal({"x": 1})
    assert isinstance(LeaseBook(storage, "s").look(), Held)


def test_a_sealed_step_cannot_be_taken(storage: Storage) -> None:
    with _take(LeaseBook(storage, "s")) as lease:
        lease.seal({"x": 1})
    found = LeaseBook(storage, "s").acquire("b")
    assert isinstance(found, Sealed) and found.receipt == {"x": 1}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["acquire", "end", "seal"]), min_size=1, max_size=12))
def test_at_most_one_receipt_whatever_the_order_of_events(events: list[str]) -> None:
    """Any interleaving of take-overs, endings and publications by all attempts that ever held the step."""
    storage = Storage(f"memory://{os.urandom(8).hex()}")
    attempts: list[Lease] = []
    receipts = []
    for event in events:
        if event == "acquire":
            taken = LeaseBook(storage, "s").acquire("r")
            if isinstance(taken, Lease):
                attempts.append(taken)
        elif attempts and event == "end":
            storage.write_bytes(f"s/lease/{attempts[-1].number:06d}.end", b"")
        elif event == "seal":
            for attempt in attempts:  # every attempt tries, the superseded ones too
                try:
                    attempt.seal({"attempt": attempt.number})
                    receipts.append(attempt.number)
                except Superseded:
                    continue
    assert len(receipts) <= 1
    if receipts:
        found = LeaseBook(storage, "s").look()
        assert isinstance(found, Sealed) and found.receipt == {"attempt": receipts[0]}
