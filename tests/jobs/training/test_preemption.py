"""A notice that the machine goes: SIGTERM reaches a thread that is not the main one, and does not end the process."""

from __future__ import annotations

import subprocess
import sys

from jobs.runs.stop import mark_attempt_failed, preemption_reason, request_attempt_stop, request_preemption
from jobs.training.preemption import PreemptionNotice
from pipeline.storage import Storage
from tests.ncp_process import ROOT

WORKER = """
import os, signal, threading, time
from jobs.training.preemption import PreemptionNotice

noticed = threading.Event()
reasons = []

def note(reason):
    reasons.append(reason)
    noticed.set()

def loop():
    with PreemptionNotice(note):
        for _ in range(3):
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert noticed.wait(30)
    print(reasons, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)  # the handler from before is back

thread = threading.Thread(target=loop)
thread.start()
thread.join()
time.sleep(30)
"""


def test_sigterm_is_noticed_once_and_means_the_end_again_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "['SIGTERM']\n", (done.returncode, done.stderr)
    assert done.returncode == -15


def test_without_a_notice_nothing_happens() -> None:
    reasons: list[str] = []
    with PreemptionNotice(reasons.append):
        pass
    assert reasons == []


def test_neither_a_person_who_asked_to_stop_nor_a_failure_is_turned_into_a_preemption() -> None:
    storage = Storage("memory://preemption")
    request_attempt_stop(storage, "steps/s", 1)
    request_preemption(storage, "steps/s", 1, "SIGTERM")
    assert preemption_reason(storage, "steps/s", 1) is None
    request_preemption(storage, "steps/s", 2, "SIGTERM")
    assert preemption_reason(storage, "steps/s", 2) == "SIGTERM"
    mark_attempt_failed(storage, "steps/s", 2)
    assert preemption_reason(storage, "steps/s", 2) == "SIGTERM", (
        "a notice that came first explains the failure"
    )
    request_attempt_stop(storage, "steps/s", 2)
    assert preemption_reason(storage, "steps/s", 2) is None
    mark_attempt_failed(storage, "steps/s", 3)
    request_preemption(storage, "steps/s", 3, "SIGTERM")
    assert preemption_reason(storage, "steps/s", 3) is None
