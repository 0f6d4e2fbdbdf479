"""Watching runs: `ncp status`, `ncp dashboard`, `ncp report`. All three read storage alone and change nothing in it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from curriculum.errors import InputError
from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.exit_codes import USAGE
from jobs.runs.overview import run_overview, run_overviews
from jobs.show.compare_view import first_against_others
from jobs.show.dashboard.hosts import is_loopback
from jobs.show.dashboard.server import DashboardServer
from jobs.show.dashboard.site import Site
from jobs.show.report.page import render_page
from jobs.show.run_report import run_report
from jobs.show.status_view import print_run, print_run_list
from jobs.show.terminal import out, print_evaluations, say
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

WATCH_SECONDS = 2.0


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
        overviews = [run_overview(opened, run)] if run else list(run_overviews(opened))
        if as_json:
            print(json.dumps([overview.record() for overview in overviews], indent=1), flush=True)
        else:
            if watch and out.is_terminal:
                out.clear()
            if run:
                print_run(out, overviews[0])
            else:
                print_run_list(out, overviews)
        if not watch or all(overview.status.state != "running" for overview in overviews):
            return
        time.sleep(WATCH_SECONDS)


def dashboard(
    storage: StorageOption = DEFAULT_STORAGE,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback shows the runs to a network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8300,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Answer under this name too (beside localhost and addresses).", metavar="NAME"),
    ] = None,
) -> None:
    """A read-only site about all runs, from storage alone, refreshing by itself. Example: ncp dashboard --port 8300"""

    try:
        server = DashboardServer(Site(Storage(storage)), host, port, names=allow_host or [])
    except OSError as error:
        print(
            f"error: --host {host} --port {port}: {error.strerror or error}; choose another", file=sys.stderr
        )
        raise typer.Exit(USAGE) from None
    if not is_loopback(host):
        print(
            f"warning: there is no password; whoever reaches {host} can read run names, recipes and logs. "
            "Prefer loopback and an SSH tunnel: ssh -L 8300:127.0.0.1:8300 HOST",
            file=sys.stderr,
        )
    say(f"{server.url}  (Ctrl-C ends it)")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs of this storage.")],
    storage: StorageOption = DEFAULT_STORAGE,
    to: Annotated[
        Path | None, typer.Option(help="Write the page here instead of beside the (first) run.")
    ] = None,
) -> None:
    """One self-contained HTML page about a run, finished or not, or about several, the first as baseline. Example: ncp report a b"""

    opened = Storage(storage)
    if to is not None and not to.parent.is_dir():
        raise InputError(
            f"--to: {str(to)!r}: there is no folder {str(to.parent)!r}; make it, or give another path"
        )
    reports, unreadable = {}, []
    for run in dict.fromkeys(runs):
        try:
            reports[run] = run_report(opened, run)
        except DamagedRecord as error:
            unreadable.append(str(error))
    if not reports:
        raise DamagedRecord("; ".join(unreadable))
    for reason in unreadable:
        print(f"warning: left out: {reason}", file=sys.stderr)
    runs = list(reports)
    comparisons, notes = first_against_others(opened, runs)
    left_out = [f"Left out: {reason}." for reason in unreadable]
    page = render_page(list(reports.values()), comparisons, [*notes, *left_out]).encode()
    if len(runs) == 1:
        print_evaluations(opened, runs[0])
    if to is not None:
        to.write_bytes(page)
        say(str(to))
        return
    key = f"runs/{runs[0]}/{'report' if len(runs) == 1 else 'report-' + '-'.join(runs[1:])[:120]}.html"
    opened.write_bytes(key, page)
    say(opened.uri(key))
