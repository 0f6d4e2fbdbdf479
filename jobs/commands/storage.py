"""`ncp runs` and `ncp gc`: what lies in a storage, and removing what nobody names any more."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.exit_codes import FAILED, USAGE
from jobs.runs.garbage import Unnamed, collect, unnamed
from jobs.runs.record import UnreadableRun, all_runs, read_run, remove_run, run_records
from jobs.runs.status import recorded_status, unreadable_status
from jobs.show.terminal import out, say
from pipeline.dag.lease import Superseded
from pipeline.quantities import byte_size
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

app = typer.Typer(
    invoke_without_command=True, help="List the runs of a storage, or remove one. Example: ncp runs"
)
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without this, it is only listed.")]


@app.callback()
def runs(
    context: typer.Context, storage: StorageOption = DEFAULT_STORAGE, as_json: JsonOption = False
) -> None:
    """List the runs of a storage, or remove one. Example: ncp runs"""
    if context.invoked_subcommand is not None:
        return
    opened = Storage(storage)
    states = [
        unreadable_status(found)
        if isinstance(found, UnreadableRun)
        else recorded_status(opened, found, str(found["run"]))
        for found in all_runs(opened)
    ]
    if as_json:
        rows = [
            {
                "run": s.run, "recipe": s.recipe, "state": s.state, "created": s.created, "problem": s.problem,
            }
            for s in states
        ]  # fmt: skip
        print(json.dumps(rows, indent=1))
        return
    if not states:
        say("no runs yet; start one with: ncp run demo")
        return
    table = Table()
    for header in ("run", "recipe", "state", "steps done", "created (UTC)"):
        table.add_column(header, overflow="fold")
    for state in states:
        done = sum(step.state == "done" for step in state.steps)
        created = (
            "-" if state.created is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(state.created))
        )
        table.add_row(
            escape(state.run), escape(state.recipe), state.state, f"{done}/{len(state.steps)}", created
        )
    out.print(table)
    for state in states:
        if state.problem:
            say(f"{state.run}: {state.problem}; ncp runs rm {state.run} --yes removes its record and log")
        for step in state.steps:
            if step.state == "unreadable":
                say(f"{state.run}: {step.name}: {step.detail}")


@app.command()
def rm(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    yes: YesOption = False,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Remove a run's record and log; its steps stay until `ncp gc`. Example: ncp runs rm demo-1a2b3c --yes"""
    opened = Storage(storage)
    try:
        steps = read_run(opened, run)["steps"]
    except DamagedRecord as error:
        say(f"{error}")
        steps = []
    others = {step["key"] for other in run_records(opened) if other["run"] != run for step in other["steps"]}
    alone = [step for step in steps if step["key"] not in others]
    if not yes:
        say(f"would remove the record and log of {run}; its steps stay in storage")
        say(f"{len(alone)} of its {len(steps)} steps are then named by no run, and `ncp gc` removes them:")
        for step in alone:
            say(f"  {step['key']}  {byte_size(opened.total_bytes(step['key']))}")
        say(f"to remove: ncp runs rm {run} --yes")
        return
    remove_run(opened, run)
    say(f"{run}: removed; {len(alone)} steps are named by no run now, see ncp gc")


def gc(yes: YesOption = False, storage: StorageOption = DEFAULT_STORAGE, as_json: JsonOption = False) -> None:
    """Remove steps and pins that no run names; without --yes they are only listed. Nothing goes while a record that may name it cannot be read. Example: ncp gc --yes"""
    opened = Storage(storage)
    if not yes:
        items = unnamed(opened)
        if as_json:
            print(json.dumps([item.__dict__ for item in items], indent=1))
            return
        for item in items:
            say(_line(item))
        free = [item for item in items if not item.held and not item.kept]
        say(
            f"{len(free)} items, {byte_size(sum(item.bytes for item in free))}, are named by no run"
            + ("; to remove them: ncp gc --yes" if free else "")
        )
        return
    removed: list[Unnamed] = []

    def on_removed(item: Unnamed) -> None:
        removed.append(item)
        if not as_json:
            say(f"removed {_line(item)}")

    try:
        stayed = collect(opened, on_removed)
    except Superseded as error:
        print(f"error: gc: {error}; run it again later", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if as_json:
        rows = {"removed": [item.__dict__ for item in removed], "stayed": [item.__dict__ for item in stayed]}
        print(json.dumps(rows, indent=1))
        return
    for item in stayed:
        say(f"kept {_line(item)}")
    say(f"{len(removed)} items removed, {byte_size(sum(item.bytes for item in removed))}")


def _line(item: Unnamed) -> str:
    why = f"  in use: {item.held}" if item.held else f"  kept: {item.kept}" if item.kept else ""
    return f"{item.key}  {byte_size(item.bytes)}{why}"


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Take damaged milestones away, so that `ncp run` makes them again."),
    ] = False,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Read everything a run names and hold it against its digests; exit 2 when something is damaged. Example: ncp verify demo-1a2b3c"""
    from jobs.runs.verify import set_damaged_aside, verify_run  # brings pyarrow

    opened = Storage(storage)
    found = verify_run(opened, run)
    say(f"{run}: {', '.join(f'{count} {kind}' for kind, count in sorted(found.proved.items()))} as written")
    if found.unproved:
        kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(found.unproved.items()))
        say(f"without a digest, and decide nothing: {kinds}")
    for problem in found.problems:
        print(f"damaged: {problem}", file=sys.stderr)
    if set_aside:
        for line in set_damaged_aside(opened, run, found):
            say(line)
    if found.problems:
        raise typer.Exit(USAGE)
