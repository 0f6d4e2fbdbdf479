"""`ncp plan`, `ncp run` and `ncp submit`: from a recipe to a plan, or to a run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from curriculum.load import bundled_recipes, load_recipe
from jobs.exit_codes import STOPPED, print_failures
from jobs.launch import plan_recipe, prepare_run, run_recipe
from jobs.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.plan_view import plan_record, print_plan
from jobs.ray_jobs import follow_submission, submit_run
from jobs.runs import read_run
from jobs.terminal import out, print_evaluations, say
from pipeline.dag.runner import Stopped
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

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
            opened, loaded, name=name, overrides=overrides or [], accept=accept_gate or [], say=say
        )
    except Stopped as stop:
        say(f"{stop}; run the same command again to resume")
        raise typer.Exit(STOPPED) from None
    if not outcome.ok:
        raise typer.Exit(print_failures(outcome))
    print_evaluations(opened, planned.run)
    say(_report_path(opened, planned.run))


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
    run = prepare_run(opened, loaded, name=name, overrides=overrides or [], say=say).run
    submission = submit_run(
        opened, address, run, recipe, [*(overrides or []), *(["--name", name] if name else [])], python=python
    )
    say(f"{run}: submitted to {address} as {submission}; see ncp status {run} and ncp logs {run}")
    if follow:
        raise typer.Exit(follow_submission(opened, address, run, submission, say))


def _report_path(storage: Storage, run: str) -> str:
    step = next(step for step in read_run(storage, run)["steps"] if step["kind"] == "report")
    receipt = StepStore(storage, step["key"]).receipt()
    assert receipt is not None
    return storage.uri(receipt["report"])
