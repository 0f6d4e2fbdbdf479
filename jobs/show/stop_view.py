"""`ncp stop`, in words: what was asked, what still goes on, and what is left of the run."""

from __future__ import annotations

from jobs.cluster.ray_jobs import stop_jobs
from jobs.runs.status import RunStatus, run_status
from jobs.runs.stop import request_run_stop
from pipeline.storage import Storage


def stop_run(storage: Storage, run: str, address: str | None) -> list[str]:
    """Ask `run` to stop and say what is left. Raises RecipeError for an unknown run, or an address that does not answer."""
    running = request_run_stop(storage, run)
    jobs = stop_jobs(storage, address, run) if address is not None else {}
    status = run_status(storage, run)
    lines = [f"{run}: asked to stop" if running or jobs else f"{run}: nothing was running"]
    lines += [f"  {name}: ends at its next boundary; training writes a milestone first" for name in running]
    for submission, state in sorted(jobs.items()):
        lines.append(f"  {submission}: {_job_text(state)}")
    return [*lines, *what_is_left(status), "  go on with the same ncp run or ncp submit command"]


def what_is_left(status: RunStatus) -> list[str]:
    """The steps that are not done, each with where it stands."""
    left = [step for step in status.steps if step.state != "done"]
    if not left:
        return ["  all steps are done"]
    width = max(len(step.name) for step in left)
    return [f"  left: {step.name:<{width}}  {step.state}  {step.detail}".rstrip() for step in left]


def _job_text(state: str) -> str:
    match state:
        case "PENDING":
            return "still waits for the cluster; it ends by itself as soon as it starts"
        case "RUNNING":
            return "runs, and ends by itself"
        case _:
            return state.lower()
