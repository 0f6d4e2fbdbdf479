"""`ncp plan`, `ncp run` and `ncp submit`: from a recipe to a plan, or to a run."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer

from curriculum.load import bundled_recipes, load_recipe, settled_overrides
from jobs.cluster.ray_alive import ClusterLost
from jobs.cluster.ray_jobs import follow_submission, job_client, submit_run
from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.exit_codes import DONE, STOPPED, UNREACHABLE, print_failures
from jobs.launch import check_accepted, prepare_run, run_recipe
from jobs.plan.cost import DEFAULT_DEVICE, DEFAULT_MFU, DEVICE_PEAK_FLOPS, Rates, step_costs
from jobs.plan.made_with import made_with_other_software
from jobs.plan.planned import plan_recipe
from jobs.plan.selection import Selection, generation_overrides
from jobs.plan.supply import stage_draws
from jobs.runs.record import read_run
from jobs.runs.stop import StoppedByRequest
from jobs.show.plan_drawing import graph_html, graph_svg, graph_text, plan_nodes
from jobs.show.plan_view import plan_record, print_plan
from jobs.show.terminal import out, print_evaluations, say
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


NameOption = Annotated[
    str | None, typer.Option(help="Name of the run; by default {recipe}-{6 hex of its identity}.")
]
AcceptGateOption = Annotated[
    list[str] | None,
    typer.Option(help="Leave this stage whatever its gate says; recorded.", metavar="STAGE"),
]
UntilOption = Annotated[str | None, typer.Option(help="This step and all that it hangs on.", metavar="STEP")]
OnlyOption = Annotated[
    str | None, typer.Option(help="This step alone; what it needs must be done.", metavar="STEP")
]
ForceOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Compute this step anew, as its next generation, and what hangs on it; nothing is deleted.",
        metavar="STEP",
    ),
]
RetryFailedOption = Annotated[
    bool,
    typer.Option(
        help="Try steps again that failed for bad input in an earlier invocation; off for loops of submissions."
    ),
]


class GraphFormat(enum.Enum):
    """How `ncp plan --graph` draws."""

    text = "text"
    svg = "svg"
    html = "html"


def plan(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    device: Annotated[
        str, typer.Option(help=f"GPU to estimate with: {', '.join(DEVICE_PEAK_FLOPS)}.")
    ] = DEFAULT_DEVICE,
    device_flops: Annotated[
        float | None, typer.Option(help="Its peak FLOP/s instead, as in 989.4e12.")
    ] = None,
    mfu: Annotated[float, typer.Option(help="Model FLOPs utilisation to expect.")] = DEFAULT_MFU,
    gpu_hour_price: Annotated[float | None, typer.Option(help="Price of one GPU for one hour.")] = None,
    graph: Annotated[
        GraphFormat | None, typer.Option(help="Draw the steps instead, to standard output.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What would run, what is done, why not, and what it costs. Writes nothing. Example: ncp plan demo stage2.optimizer.lr=0.001 --graph text"""
    loaded = load_recipe(recipe, overrides or [])
    rates = Rates.chosen(device=device, device_flops=device_flops, mfu=mfu, gpu_hour_price=gpu_hour_price)
    opened = Storage(storage)
    planned, rows = plan_recipe(opened, loaded)
    draws = stage_draws(opened, planned.recipe, planned.steps)
    if graph is not None:
        nodes = plan_nodes(rows)
        match graph:
            case GraphFormat.text:
                say(graph_text(nodes))
            case GraphFormat.svg:
                say(graph_svg(nodes))
            case GraphFormat.html:
                print(graph_html(nodes, f"run {planned.run}"), end="")
        return
    costs = step_costs(opened, planned.recipe, rows, rates)
    made_with = made_with_other_software(opened, rows)
    if as_json:
        print(json.dumps(plan_record(planned, rows, costs, rates, draws, made_with), indent=1))
    else:
        print_plan(out, planned, rows, costs, rates, draws, made_with)


def run(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    name: NameOption = None,
    until: UntilOption = None,
    only: OnlyOption = None,
    force: ForceOption = None,
    retry_failed: RetryFailedOption = True,
    accept_gate: AcceptGateOption = None,
    supervised: Annotated[
        bool,
        typer.Option(
            help="Something starts this again when it fails (KubeRay): after ncp stop, exit with 0."
        ),
    ] = False,
) -> None:
    """The whole DAG, here and now: local Ray unless RAY_ADDRESS names a cluster. Run it again to resume. Example: ncp run demo"""
    loaded = load_recipe(recipe, overrides or [])
    opened = Storage(storage)
    selection = Selection(until=until, only=only, force=tuple(force or ()), retry_failed=retry_failed)
    try:
        planned, outcome = run_recipe(
            opened,
            loaded,
            name=name,
            overrides=overrides or [],
            accept=accept_gate or [],
            selection=selection,
            say=say,
        )
    except Stopped as stop:
        say(f"{stop}; run the same command again to resume")
        if isinstance(stop, ClusterLost):
            raise typer.Exit(UNREACHABLE) from None
        final = supervised and isinstance(stop, StoppedByRequest)
        raise typer.Exit(DONE if final else STOPPED) from None
    if not outcome.ok:
        raise typer.Exit(print_failures(outcome))
    print_evaluations(opened, planned.run)
    say(_report_path(opened, planned.run) or f"{planned.run}: {', '.join(outcome.done)} done")


def submit(
    recipe: RecipeArgument,
    address: Annotated[str, typer.Option(help="The cluster's job server, such as http://127.0.0.1:8265.")],
    overrides: OverridesArgument = None,
    storage: StorageOption = DEFAULT_STORAGE,
    name: NameOption = None,
    until: UntilOption = None,
    only: OnlyOption = None,
    force: ForceOption = None,
    retry_failed: RetryFailedOption = True,
    accept_gate: AcceptGateOption = None,
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
    check_accepted(loaded, accept_gate or [])
    job_client(address)  # first: a cluster that is not there leaves no trace of a run in storage
    selection = Selection(until=until, only=only, force=tuple(force or ()), retry_failed=retry_failed)
    planned = prepare_run(opened, loaded, name=name, overrides=overrides or [], selection=selection, say=say)
    arguments = [
        *settled_overrides(overrides or []),
        *(generation_overrides(planned.recipe) if force else []),
        *(["--name", name] if name else []),
        *selection.arguments(),
        *(word for stage in accept_gate or [] for word in ("--accept-gate", stage)),
    ]
    submission = submit_run(opened, address, planned.run, recipe, arguments, python=python)
    say(
        f"{planned.run}: submitted to {address} as {submission}; see ncp status {planned.run} and ncp logs {planned.run}"
    )
    if follow:
        raise typer.Exit(follow_submission(opened, address, planned.run, submission, say))


def _report_path(storage: Storage, run: str) -> str | None:
    """Where the run's report lies, once its step is done."""
    step = next(step for step in read_run(storage, run)["steps"] if step["kind"] == "report")
    receipt = StepStore(storage, step["key"]).receipt()
    return storage.uri(receipt["report"]) if receipt is not None else None
