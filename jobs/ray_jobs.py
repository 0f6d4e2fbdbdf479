"""`ncp submit`: the same run as a Ray Job on a cluster.

The job is nothing but `ncp run` on the head node, a light driver: the loss of any worker node never touches it, and the
loss of the head is cured by submitting again, since all state is in storage. Only code is uploaded; its size is checked
here, where the biggest files can be named, instead of by a refused request.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from curriculum.errors import RecipeError
from pipeline.redaction import redact
from pipeline.storage import Storage

PACKAGES = ("curriculum", "jobs", "ncp_model", "pipeline")
MAX_UPLOAD_BYTES = 100 * 1024 * 1024
"""What Ray's job server takes in one request."""
FOLLOW_SECONDS = 1.0
CARRIED_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "NCP_ASSETS", "HF_ENDPOINT")
"""Settings that travel with the job. Credentials never do: the nodes have their own."""


def submit_run(
    storage: Storage, address: str, run: str, recipe: str, arguments: Sequence[str], *, python: str | None
) -> str:
    """Submit `ncp run` for `run`; returns the submission id, `{run}-a{attempt}`.

    `arguments` follow the recipe on the command line. Raises RecipeError when the code is too large to upload.
    """
    submission = f"{run}-a{_claim_submission(storage, run, address)}"
    with tempfile.TemporaryDirectory(prefix="ncp-submit-") as folder:
        code = Path(folder)
        shipped = stage_code(code, recipe)
        entrypoint = shlex.join(
            [
                python or interpreter(address),
                "-m",
                "jobs.cli",
                "run",
                shipped,
                *arguments,
                "--storage",
                storage.url,
            ]
        )
        job_client(address).submit_job(
            entrypoint=entrypoint,
            submission_id=submission,
            runtime_env={"working_dir": str(code), "env_vars": carried_environment()},
            metadata={"run": run, "storage": storage.url},
        )
    return submission


def follow_submission(
    storage: Storage, address: str, run: str, submission: str, say: Callable[[str], None]
) -> int:
    """Show the run's log until the job is over; returns its exit code."""
    client = job_client(address)
    seen: set[str] = set()
    while True:
        over = str(client.get_job_status(submission)) in ("SUCCEEDED", "FAILED", "STOPPED")
        for key in storage.keys(f"runs/{run}/log"):
            if key.endswith(".txt") and key not in seen:
                seen.add(key)
                say(storage.read_bytes(key).decode().rstrip())
        if over:
            code = client.get_job_info(submission).driver_exit_code
            return 1 if code is None else code
        time.sleep(FOLLOW_SECONDS)


def stop_jobs(address: str, run: str) -> list[str]:
    """Stop submissions of `run` that wait for the cluster; one that runs is asked through storage and ends by itself."""
    client = job_client(address)
    stopped = []
    for job in client.list_jobs():
        mine = (job.metadata or {}).get("run") == run
        if mine and job.submission_id and str(job.status) == "PENDING":
            client.stop_job(job.submission_id)
            stopped.append(job.submission_id)
    return stopped


def job_client(address: str) -> Any:
    """The cluster's job server, such as http://127.0.0.1:8265. Raises RecipeError when it does not answer."""
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RecipeError(
            f"--address: {address!r} does not answer as a Ray job server ({reason}); "
            "give its http:// address, and RAY_AUTH_MODE=token if the cluster asks for one"
        ) from error


def interpreter(address: str) -> str:
    """This very Python for a cluster on this machine, `python` elsewhere."""
    host = urlparse(address).hostname or ""
    return sys.executable if host in ("127.0.0.1", "localhost", "::1") else "python"


def carried_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in CARRIED_VARIABLES if name in os.environ}


def stage_code(folder: Path, recipe: str) -> str:
    """Copy the packages (and a recipe that is a file) into `folder`; returns the recipe's name there.

    Raises RecipeError naming the biggest files when they are too large to upload.
    """
    root = Path(__file__).parent.parent
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if recipe.endswith((".yaml", ".yml")):
        shutil.copy(recipe, folder / Path(recipe).name)
        recipe = Path(recipe).name
    sizes = sorted(
        ((path.stat().st_size, path) for path in folder.rglob("*") if path.is_file()), reverse=True
    )
    total = sum(size for size, _ in sizes)
    if total > MAX_UPLOAD_BYTES:
        biggest = ", ".join(f"{path.relative_to(folder)} ({size / 1e6:.0f} MB)" for size, path in sizes[:5])
        raise RecipeError(
            f"submit: the code is {total / 1e6:.0f} MB, a Ray job takes {MAX_UPLOAD_BYTES / 1e6:.0f} MB; "
            f"move out the biggest files: {biggest}"
        )
    return recipe


def _claim_submission(storage: Storage, run: str, address: str) -> int:
    attempt = 1
    while not storage.create_json(
        f"runs/{run}/submissions/{attempt:06d}.json",
        {"address": redact(address), "at": time.time(), "from": os.getpid()},
    ):
        attempt += 1
    return attempt
