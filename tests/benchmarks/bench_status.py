"""`ncp status` on runs of growing length: the whole process, and the reading by itself.

The runs are made up (tests/jobs/stored_run.py): one stage, rows in segments of ten, as training closes them every few
seconds. Beside it, what reading every row costs, which is what status must not do.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from jobs.runs.metric_log import read_metrics
from jobs.runs.metric_series import MetricSeries
from jobs.runs.overview import run_overview
from pipeline.storage import Storage
from tests.jobs.counting import CountingStorage
from tests.jobs.stored_run import store_run

LENGTHS = (1_000, 10_000, 100_000)
SEGMENT_ROWS = 10
REPEATS = 5


def main() -> int:
    print("# ncp status: cost against the length of the run\n")
    print(f"One stage, {SEGMENT_ROWS} rows a segment, local disk. Best of {REPEATS}, seconds.\n")
    print(
        "| rows | segments | `ncp status RUN`, wall | its CPU time | overview | reads | MB read | every row read | followed again |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for rows in LENGTHS:
        with tempfile.TemporaryDirectory(prefix="ncp-bench-") as folder:
            print(measured(folder, rows), flush=True)
    print(
        "\nThe wall time holds the start of Python and its imports, and whatever else the machine was doing. `overview` is the "
        "reading by itself. `every row read` is `read_metrics`; `followed again` is a later look of `MetricSeries`, as the dashboard's, when "
        "nothing is new."
    )
    print(f"\nLoad average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores at the end.")
    print(f"\n{platform.processor() or platform.machine()}, Python {platform.python_version()}.")
    return 0


def measured(folder: str, rows: int) -> str:
    storage = CountingStorage(folder)
    tokens = f"stage1.tokens={4096 * rows}", f"stage1.horizon_tokens={4096 * rows}"
    steps = store_run(
        quick(folder), "r", *tokens, "stage1.max_repetition=1000000", losses={"stage1": lambda tokens: 5.0},
        segment_rows=SEGMENT_ROWS,
    )  # fmt: skip
    command = [sys.executable, "-m", "jobs.cli", "status", "r", "--storage", folder]
    used = children_cpu()
    process = best(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    used = (children_cpu() - used) / REPEATS
    overview = best(lambda: run_overview(storage, "r"))
    storage.reset()
    run_overview(storage, "r")
    counts = storage.counts()
    key = steps["stage1"].key
    whole = best(lambda: read_metrics(storage, key), repeats=1)
    series = MetricSeries(storage, key)
    series.look()
    again = best(series.look)
    return (
        f"| {rows:,} | {rows // SEGMENT_ROWS:,} | {process:.2f} | {used:.2f} | {overview:.3f} | {counts['reads']} | "
        f"{counts['bytes'] / 1e6:.3f} | {whole:.2f} | {again:.3f} |"
    )


def children_cpu() -> float:
    """CPU seconds of the processes waited for so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def best(call: Callable[[], object], repeats: int = REPEATS) -> float:
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def quick(folder: str) -> Storage:
    """The same storage without waiting for the disk at every object: ten thousand of them are made up here."""

    class Quick(Storage):
        def write_bytes(self, key: str, data: bytes) -> None:
            path = self.local_path(key)
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return Quick(folder)


if __name__ == "__main__":
    sys.exit(main())
