"""`ncp eval --address`: the same evaluation as a Ray Job on a cluster, submitted by itself.

The job is nothing but `ncp eval` on the head node, a light driver of the actors. Submitting twice is harmless: the second
waits for the first one's lease, or finds its receipt.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence

from jobs.cluster.ray_jobs import OVER, interpreter, job_client
from jobs.cluster.reach import followed
from jobs.cluster.shipping import carried_environment, staged_code
from pipeline.storage import Storage

FOLLOW_SECONDS = 1.0


def submit_evaluation(
    storage: Storage, address: str, run: str, arguments: Sequence[str], *, python: str | None
) -> str:
    """Submit `ncp eval ARGUMENTS`; returns the submission id, `{run}-eval{number}`. Raises ClusterUnavailable."""
    client = job_client(address)
    with staged_code() as code:
        submission = f"{run}-eval{_claim(storage, run, address, arguments)}"
        command = [python or interpreter(address), "-m", "jobs.cli", "eval", *arguments]
        client.submit_job(
            entrypoint=shlex.join([*command, "--storage", storage.url]),
            submission_id=submission,
            runtime_env={"working_dir": str(code), "env_vars": carried_environment()},
            metadata={"run": run, "storage": storage.url},
        )
    return submission


def follow_evaluation(address: str, submission: str, say: Callable[[str], None]) -> int:
    """Wait until the job is over, show what it printed, and give its exit code. Raises ConnectionLost."""
    client = job_client(address)
    again = f"ray job logs --follow --address {address} {submission}"
    while str(followed(lambda: client.get_job_status(submission), again)) not in OVER:
        time.sleep(FOLLOW_SECONDS)
    say(followed(lambda: client.get_job_logs(submission), again).rstrip())
    code = followed(lambda: client.get_job_info(submission), again).driver_exit_code
    return 1 if code is None else code


def _claim(storage: Storage, run: str, address: str, arguments: Sequence[str]) -> int:
    number = 1
    record = {"address": address, "arguments": list(arguments), "at": time.time(), "from": os.getpid()}
    while not storage.create_json(f"runs/{run}/evaluations/{number:06d}.json", record):
        number += 1
    return number
