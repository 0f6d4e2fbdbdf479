"""`ncp status`, `ncp logs`, `ncp stop` and `ncp report`: a run as storage knows it, cluster or no cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from jobs.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.run_log import read_run_log, read_step_log
from jobs.runs import list_runs
from jobs.status import RunStatus, duration, run_status
from jobs.stop_view import stop_run
from jobs.terminal import out, print_evaluations, say
from pipeline.storage import Storage


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run; without one, all are listed.")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option(help="Refresh every two seconds until the run is over.")] = False,
) -> None:
    """Where it is, read from storage alone. Example: ncp status demo-1a2b3c --watch"""
    opened = Storage(storage)
    while True:
        states = [run_status(opened, name) for name in ([run] if run else list_runs(opened))]
        if as_json:
            print(json.dumps([state.record() for state in states], indent=1))
        else:
            if watch and out.is_terminal:
                out.clear()
            _print_status(states, detailed=run is not None)
        if not watch or all(state.state != "running" for state in states):
            return
        time.sleep(2)


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    step: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="Failures and stacks of one step.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Go on until nobody works on the run.")] = False,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """A run's log, from storage: also when the cluster is gone. Example: ncp logs demo-1a2b3c --follow"""
    opened = Storage(storage)
    pieces = read_run_log(opened, run, follow=follow) if step is None else read_step_log(opened, run, step)
    for piece in pieces:
        print(piece, end="", flush=True)


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    storage: StorageOption = DEFAULT_STORAGE,
    address: Annotated[
        str | None,
        typer.Option(help="The cluster's job server, to stop a submission that still waits for it."),
    ] = None,
) -> None:
    """Ask a run to stop: training writes a milestone first, no step is lost. Example: ncp stop demo-1a2b3c"""
    for line in stop_run(Storage(storage), run, address):
        say(line)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    storage: StorageOption = DEFAULT_STORAGE,
    to: Annotated[str | None, typer.Option(help="Write the page here instead of beside the run.")] = None,
) -> None:
    """One self-contained HTML page about a run, finished or not. Prints the table and the page's path."""
    from jobs.report.page import render_page
    from jobs.run_report import run_report

    opened = Storage(storage)
    page = render_page([run_report(opened, run)]).encode()
    print_evaluations(opened, run)
    if to is not None:
        Path(to).write_bytes(page)
        say(to)
    else:
        key = f"runs/{run}/report.html"
        opened.write_bytes(key, page)
        say(opened.uri(key))


def _print_status(states: list[RunStatus], *, detailed: bool) -> None:
    if not states:
        out.print("no runs yet; start one with: ncp run demo")
    for state in states:
        over = sum(step.state == "done" for step in state.steps)
        out.print(f"{state.run}  {state.state}  {over}/{len(state.steps)} steps done")
        for step in state.steps:
            if detailed or step.state in ("running", "failed"):
                took = f"  {duration(step.seconds)}" if step.seconds is not None else ""
                out.print(f"  {step.name:<22} {step.state:<8}{took}  {step.detail}".rstrip(), markup=False)
