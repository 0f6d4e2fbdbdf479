"""The watchdog, in a real process: a worker that stands still is dumped and ended, one that moves is left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from jobs.runs.stop import preemption_reason, request_preemption
from jobs.training.watchdog import EXIT_CODE
from pipeline.storage import Storage
from tests.ncp_process import ROOT

WORKER = """
import sys, time
from jobs.training.watchdog import Watchdog
from pipeline.storage import Storage

def where_it_hangs():
    time.sleep(60)

with Watchdog(Storage(sys.argv[1]), "steps/s", 3, 1, timeout_seconds=1.0) as watchdog:
    for _ in range(8):
        time.sleep(0.25)
        watchdog.step_taken()
    if sys.argv[2] == "hang":
        where_it_hangs()
"""


def _run(storage: Path, what: str) -> int:
    return subprocess.run([sys.executable, "-c", WORKER, str(storage), what], cwd=ROOT, timeout=60).returncode


def test_a_worker_that_stands_still_leaves_its_stacks_and_ends(tmp_path: Path) -> None:
    assert _run(tmp_path, "hang") == EXIT_CODE
    stacks = Storage(str(tmp_path)).read_bytes("steps/s/stacks/000003-rank1.txt").decode()
    assert "no step for 1 seconds" in stacks and "where_it_hangs" in stacks
    request_preemption(Storage(str(tmp_path)), "steps/s", 3, "the SIGTERM that follows")
    assert preemption_reason(Storage(str(tmp_path)), "steps/s", 3) is None


def test_a_worker_that_takes_steps_is_left_alone(tmp_path: Path) -> None:
    assert _run(tmp_path, "finish") == 0
    assert Storage(str(tmp_path)).keys("") == []


def test_a_worker_whose_store_hangs_too_ends_all_the_same() -> None:
    """A server that accepts and never answers: the stacks are on stderr, and the process is gone within its last words."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        ended = subprocess.run(
            [sys.executable, "-c", WORKER, "s3://bucket/store", "hang"],
            cwd=ROOT,
            env=environment,
            timeout=60,
            capture_output=True,
            text=True,
        )
    assert ended.returncode == EXIT_CODE, ended.stderr
    assert "no step for 1 seconds" in ended.stderr and "where_it_hangs" in ended.stderr
