"""The engine's own overhead: planning and running graphs of steps that do nothing, on local storage, without Ray.

Bounds (a test counts storage calls instead of time): 1,000 steps plan in under 1 s and run at over 50 steps a second,
linear to 10,000 steps.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time

from pipeline.dag.plan import make_plan
from pipeline.dag.runner import run_steps
from pipeline.dag.step import Step
from pipeline.storage import Storage

SIZES = (100, 1_000, 10_000)
WIDTH = 8
"""Chains side by side; every eighth step also needs one of the neighbouring chain."""


def graph(count: int) -> list[Step]:
    steps = []
    for i in range(count):
        needs = [f"s{i - WIDTH}"] if i >= WIDTH else []
        if i >= WIDTH and i % 8 == 0:
            needs.append(f"s{i - WIDTH + 1}")
        steps.append(Step(name=f"s{i}", kind="work", version=1, identity={"i": i}, needs=tuple(needs)))
    return steps


def main() -> None:
    print("# Overhead of the DAG engine\n")
    print(
        f"{platform.machine()}, {os.cpu_count()} logical CPUs, Python {platform.python_version()}, local disk"
    )
    print(f"(load average at the start {os.getloadavg()[0]:.1f}); no-op steps in {WIDTH} chains.")
    print(
        "A fresh step makes four small files durable, so a disk is bounded by its fsync; in memory (/dev/shm) that"
    )
    print("costs nothing and what is left is the engine.\n")
    print(
        "| storage | fsync (ms) | steps | parallel | plan, empty (s) | run (s) | steps/s | plan, done (s) | run again (s) |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for place in [place for place in ("/dev/shm", None) if place is None or os.path.isdir(place)]:
        for count, parallel in [(SIZES[0], 1), (SIZES[1], 1), (SIZES[1], 4), (SIZES[2], 4)]:
            if place is None and (count, parallel) != (SIZES[1], 4):
                continue
            measure(place, count, parallel)


def measure(place: str | None, count: int, parallel: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ncp-bench-", dir=place) as folder:
        storage = Storage(folder)
        fsync = min(timed(lambda: storage.write_bytes("probe", b"x")) for _ in range(20))
        empty = timed(lambda: make_plan(graph(count), storage))
        run = timed(lambda: execute(storage, graph(count), parallel))
        done = timed(lambda: make_plan(graph(count), storage))
        again = timed(lambda: execute(storage, graph(count), parallel))
    print(
        f"| {place or 'disk'} | {1000 * fsync:.2f} | {count:,} | {parallel} | {empty:.3f} | {run:.2f} | "
        f"{count / run:,.0f} | {done:.3f} | {again:.2f} |",
        flush=True,
    )


def execute(storage: Storage, steps: list[Step], parallel: int) -> None:
    outcome = run_steps(
        steps,
        storage,
        {"work": lambda context: {}},
        run="bench",
        on_event=lambda event: None,
        parallel=parallel,
    )
    assert outcome.ok and len(outcome.done) == len(steps)


def timed(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
