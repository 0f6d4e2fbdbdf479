"""`ncp eval --address`: the same evaluation as a Ray Job on a cluster, submitted by itself.

The job is nothing but `ncp eval` on the head node, a light driver of the actors. Submitting twice is harmless: the second
waits for the first one's lease, or finds its receipt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from jobs.cluster.ray_jobs import OVER, interpreter, job_client, submit_job
from jobs.cluster.reach import followed
from jobs.cluster.shipping import staged_code
from pipeline.claim import claim_number
from pipeline.redaction import redact
from pipeline.storage import Storage

FOLLOW_SECONDS = 1.0


def submit_evaluation(
    storage: Storage, address: str, run: str, arguments: Sequence[str], *, python: str | None
) -> str:
    """Submit `ncp eval ARGUMENTS`; returns the submission id, `{run}-eval{number}`. Raises as `submit_run`."""
    command = [python or interpreter(address), "-m", "jobs.cli", "eval", *arguments]
    record = {
        "address": redact(address),
        "arguments": list(arguments),
        "at": time.time(),
        "from": os.getpid(),
    }

    def claim() -> int:
        return claim_number(storage, lambda number: f"runs/{run}/evaluations/{number:06d}.json", record)

    with staged_code() as code:
        return submit_job(storage, address, run, command, code, name="eval", claim=claim)


def follow_evaluation(address: str, submission: str, say: Callable[[str], None]) -> int:
    """Wait until the job is over, show what it printed, and give its exit code. Raises ConnectionLost."""
    client = job_client(address)
    again = f"ray job logs --follow --address {address} {submission}"
    while str(followed(lambda: client.get_job_status(submission), again)) not in OVER:
        time.sleep(FOLLOW_SECONDS)
    say(followed(lambda: client.get_job_logs(submission), again).rstrip())
    code = followed(lambda: client.get_job_info(submission), again).driver_exit_code
    return 1 if code is None else code
