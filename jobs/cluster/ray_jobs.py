"""`ncp submit`: the same run as a Ray Job on a cluster.

The job is nothing but `ncp run` on the head node, a light driver: the loss of any worker node never touches it, and the
loss of the head is cured by submitting again, since all state is in storage.
"""

from __future__ import annotations

import codecs
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from curriculum.errors import RecipeError
from jobs.cluster.errors import ClusterUnavailable
from jobs.cluster.reach import REACH_SECONDS, followed, last_line, within
from jobs.cluster.shipping import carried_environment, shipped_name, staged_code
from jobs.exit_codes import FAILED, STOPPED
from jobs.runs.log import read_part
from jobs.runs.stop import SUBMISSION_VARIABLE, claim_submission
from pipeline.redaction import redact
from pipeline.storage import Storage

FOLLOW_SECONDS = 1.0
STOP_SECONDS = 20.0
"""How long a stop is waited for before saying that it has yet to happen."""
OVER = ("SUCCEEDED", "FAILED", "STOPPED")
SHOWN_LINES = 40


def submit_run(
    storage: Storage, address: str, run: str, recipe: str, arguments: Sequence[str], *, python: str | None
) -> str:
    """Submit `ncp run` for `run`; returns the submission id, `{run}-a{attempt}`.

    `arguments` follow the recipe on the command line. A cluster never takes an id twice: one that a run of the same name
    on another storage has used there is left out. Raises ClusterUnavailable when the cluster does not answer, RecipeError when
    it does not take the job or the code is too large to upload.
    """
    command = [python or interpreter(address), "-m", "jobs.cli", "run", shipped_name(recipe), *arguments]
    record = {"address": redact(address), "from": os.getpid()}
    with staged_code(recipe) as code:
        return submit_job(
            storage,
            address,
            run,
            command,
            code,
            name="a",
            claim=lambda: claim_submission(storage, run, record),
            told=lambda number: {SUBMISSION_VARIABLE: str(number)},
        )


def submit_job(
    storage: Storage,
    address: str,
    run: str,
    command: Sequence[str],
    code: Path,
    *,
    name: str,
    claim: Callable[[], int],
    told: Callable[[int], Mapping[str, str]] = lambda number: {},
) -> str:
    """Submit `command --storage ...` with the staged `code` as `{run}-{name}{number}`, which is returned; `claim` draws numbers until
    the cluster has none of that id. `told`: variables of the job, beside those that are carried. Raises as `submit_run`."""
    client = job_client(address)
    while True:
        number = claim()
        submission = f"{run}-{name}{number}"
        try:
            client.submit_job(
                entrypoint=shlex.join([*command, "--storage", storage.url]),
                submission_id=submission,
                runtime_env={
                    "working_dir": str(code),
                    "env_vars": {**carried_environment(), **told(number)},
                },
                metadata={"run": run, "storage": storage.url},
            )
            return submission
        except RuntimeError as error:
            if f"{submission} already exists" in str(error):
                continue
            raise RecipeError(
                f"--address: {address!r} did not take the job ({last_line(error)}); see the cluster's own logs"
            ) from error


def follow_submission(
    storage: Storage, address: str, run: str, submission: str, say: Callable[[str], None]
) -> int:
    """Show the run's log until the job is over; returns its exit code. Raises ConnectionLost.

    A job that ended badly without a word in the run's log (the wrong interpreter, a package that is missing there) has
    Ray's own log of it shown.
    """
    again = f"ncp logs {run} --follow --storage {storage.url}"
    client = job_client(address)
    before = set(storage.keys(f"runs/{run}/log"))
    seen = set(before)
    text = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        status = str(followed(lambda: client.get_job_status(submission), again))
        for key in storage.keys(f"runs/{run}/log"):
            if key.endswith(".txt") and key not in seen:
                seen.add(key)
                say(text.decode(read_part(storage, key)).rstrip())
        if status in OVER:
            break
        time.sleep(FOLLOW_SECONDS)
    info = followed(lambda: client.get_job_info(submission), again)
    code = info.driver_exit_code
    if status != "SUCCEEDED" and seen == before:
        for line in followed(lambda: client.get_job_logs(submission), again).splitlines()[-SHOWN_LINES:]:
            say(line)
        say(info.message or "")
    if code is None:
        return STOPPED if status == "STOPPED" else FAILED
    return code


def stop_jobs(storage: Storage, address: str, run: str, *, seconds: float = STOP_SECONDS) -> dict[str, str]:
    """Stop submissions of `run` that have not started; returns each living submission of the run and its state after.

    One that runs is asked through storage and ends by itself. Ray says yes to stopping a job that waits and may not do
    it, so it is looked at until it is over, `seconds` at most. A submission that starts later all the same finds
    that it was stopped (`jobs.runs.stop`), and ends at once.
    """
    client = job_client(address)
    living = {
        job.submission_id: str(job.status)
        for job in client.list_jobs()
        if _belongs(job, storage, run) and job.submission_id and str(job.status) not in OVER
    }
    waiting = {submission for submission, status in living.items() if status == "PENDING"}
    for submission in waiting:
        client.stop_job(submission)
    give_up = time.monotonic() + seconds
    while waiting and time.monotonic() < give_up:
        for submission in sorted(waiting):
            living[submission] = str(client.get_job_status(submission))
        waiting = {submission for submission in waiting if living[submission] == "PENDING"}
        time.sleep(0.2)
    return living


def _belongs(job: Any, storage: Storage, run: str) -> bool:
    """Whether a job of the cluster is a submission of this run, and not of one with its name on another storage."""
    metadata = job.metadata or {}
    return metadata.get("run") == run and metadata.get("storage") == storage.url


def job_client(address: str) -> Any:
    """The cluster's job server, such as http://127.0.0.1:8265.

    Raises ClusterUnavailable when it does not answer within REACH_SECONDS, or does not let us in.
    """
    from ray.job_submission import JobSubmissionClient

    try:
        return within(REACH_SECONDS, lambda: JobSubmissionClient(address))
    except (
        Exception
    ) as error:  # Ray raises half a dozen types for what is no address, no answer, no job server
        reason = last_line(error)
        raise ClusterUnavailable(
            f"--address: {address!r} does not answer as a Ray job server ({reason}); "
            "give its http:// address, and RAY_AUTH_MODE=token if the cluster asks for one"
        ) from error


def interpreter(address: str) -> str:
    """This very Python for a cluster on this machine, `python` elsewhere."""
    host = urlparse(address).hostname or ""
    return sys.executable if host in ("127.0.0.1", "localhost", "::1") else "python"
