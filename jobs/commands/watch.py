"""`ncp logs` and `ncp stop`: a run as storage knows it, cluster or no cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import DEFAULT_STORAGE, StorageOption
from jobs.runs.log import read_run_log, read_step_log
from jobs.show.stop_view import stop_run
from jobs.show.terminal import say
from pipeline.storage import Storage


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
