"""`ncp scaling`: a ladder's plan, its rungs, and the laws that come out."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from curriculum.schema import Recipe
from jobs.analysis.ladder_runs import fit_ladder, ladder_record, ladder_runs
from jobs.cluster.ray_session import ray_session
from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.exit_codes import STOPPED, print_failures
from jobs.launch import run_recipe
from jobs.show.report.scaling_page import render_scaling_page
from pipeline.dag.runner import Stopped
from pipeline.storage import Storage

FLOPS_PER_GPU_SECOND = 4e14
"""What the plan's GPU-hours assume: about 40 % of an H100's bfloat16 peak."""


def scaling(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe with a `ladder:` section, such as ladder-cpu.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides, as in ladder.budgets=[1e18]", metavar="[KEY=VALUE]..."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the rungs and what they cost, and end.")] = False,
    run: Annotated[bool, typer.Option("--run", help="First train every rung that is not done.")] = False,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: JsonOption = False,
) -> None:
    """The scaling laws of a ladder, from the rungs that are done. Example: ncp scaling ladder-cpu --plan"""

    loaded = load_recipe(recipe, overrides or [])
    opened = Storage(storage)
    if plan:
        runs = ladder_runs(opened, loaded)
        if as_json:
            print(json.dumps([_plan_row(run) for run in runs], indent=1))
        else:
            _print_plan(runs)
        return
    if run and (code := _train(opened, loaded)):
        raise typer.Exit(code)
    _fit(opened, loaded, as_json)


def _train(storage: Storage, recipe: Recipe) -> int:
    """Every rung that is not done, smallest budget first, in one Ray session. The exit code."""

    rungs = sorted(ladder_runs(storage, recipe), key=lambda one: (one.rung.budget, one.rung.flops))
    missing = [one for one in rungs if one.loss is None]
    code = 0
    if not missing:
        return code
    try:
        with ray_session(recipe.runtime):
            for number, one in enumerate(missing, 1):
                print(f"rung {number} of {len(missing)}: {one.rung.name}", flush=True)
                _, outcome = run_recipe(
                    storage,
                    one.recipe,
                    name=None,
                    overrides=[],
                    accept=[],
                    say=lambda text: print(text, flush=True),
                )
                code = code or (0 if outcome.ok else print_failures(outcome))
    except Stopped as stop:
        print(f"{stop}; run the same command again to resume")
        return STOPPED
    return code


def _fit(storage: Storage, recipe: Recipe, as_json: bool) -> None:

    runs = ladder_runs(storage, recipe)
    if all(one.loss is None for one in runs):
        raise RecipeError(
            f"scaling: no rung of {recipe.recipe} is done in {storage.url}; train them with --run, see --plan"
        )
    result = fit_ladder(recipe.recipe, runs)
    record = ladder_record(result, runs)
    root = f"ladders/{recipe.recipe}"
    storage.write_json(f"{root}/scaling.json", record)
    storage.write_bytes(f"{root}/scaling.html", render_scaling_page(result, runs).encode())
    if as_json:
        print(json.dumps(record, indent=1))
        return
    for name, laws in result.families.items():
        if laws.power_law is not None:
            law = laws.power_law
            print(f"{name}: log L = {law.a:.4f} - {law.b:.5f} log C over {len(laws.frontier)} budgets")
        if laws.chinchilla is not None:
            wide = laws.chinchilla
            print(
                f"{name}: L = {wide.irreducible:.3f} + {wide.a:.3g}/N^{wide.alpha:.3f} + {wide.b:.3g}/D^{wide.beta:.3f} "
                f"over {len(laws.points)} points"
            )
        if laws.missing:
            print(f"{name}: {laws.missing}")
    if result.efficiency is not None:
        gain = result.efficiency
        interval = gain.ratio_interval
        shown = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        print(f"compute efficiency: {gain.ratio:.3f}{shown}, {gain.at_largest:.3f} at the largest budget")
    print(storage.uri(f"{root}/scaling.json"))
    print(storage.uri(f"{root}/scaling.html"))


def _plan_row(run) -> dict:
    rung = run.rung
    return {
        "name": rung.name,
        "run": run.run,
        "state": run.state,
        "parameters": rung.parameters,
        "tokens": rung.tokens,
        "budget": rung.budget,
        "flops": rung.flops,
        "gpu_hours": rung.flops / FLOPS_PER_GPU_SECOND / 3600,
        "loss": run.loss,
    }


def _print_plan(runs) -> None:
    table = Table()
    for header in ("rung", "parameters", "tokens", "per parameter", "FLOPs", "GPU-hours", "state", "run"):
        table.add_column(header, justify="left" if header in ("rung", "state", "run") else "right")
    for row in map(_plan_row, runs):
        table.add_row(
            row["name"],
            f"{row['parameters']:,}",
            f"{row['tokens']:,}",
            f"{row['tokens'] / row['parameters']:.1f}",
            f"{row['flops']:.3g}",
            f"{row['gpu_hours']:.3g}",
            row["state"] + ("" if row["loss"] is None else f", loss {row['loss']:.4f}"),
            row["run"],
        )
    Console(soft_wrap=True, highlight=False, width=180).print(table)
    left = [run.rung.flops for run in runs if run.loss is None]
    total = sum(run.rung.flops for run in runs)
    hours = sum(left) / FLOPS_PER_GPU_SECOND / 3600
    print(
        f"{len(runs)} rungs, {total:.3g} FLOPs; {len(left)} to go: {sum(left):.3g} FLOPs, "
        f"{hours:.3g} GPU-hours at {FLOPS_PER_GPU_SECOND:.0e} FLOP/s"
    )
