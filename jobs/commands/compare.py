"""`ncp compare`: how many tokens and how much compute one side needs for the other's final loss."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jobs.analysis.run_compare import compare_runs
from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.show.compare_view import comparison_views, print_comparison
from jobs.show.report.page import render_page
from jobs.show.run_report import run_report
from jobs.show.terminal import out, say
from pipeline.storage import Storage


class Axis(StrEnum):
    """What is held equal."""

    TOKENS = "tokens"
    FLOPS = "flops"


def compare(
    baseline: Annotated[
        str | None, typer.Argument(metavar="[A]", help="The baseline: a run, or one a seed, with commas.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Argument(metavar="[B]", help="What is held against it, with the same seeds.")
    ] = None,
    a: Annotated[
        list[str] | None, typer.Option("--a", help="A run of the baseline; repeat for seeds.")
    ] = None,
    b: Annotated[
        list[str] | None, typer.Option("--b", help="A run of the candidate; repeat for seeds.")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    stage: Annotated[
        list[str] | None, typer.Option(help="Only this stage; by default all that both have.")
    ] = None,
    metric: Annotated[str, typer.Option(help="A logged loss: ntp, ncp, vq, ...")] = "ntp",
    by: Annotated[
        Axis, typer.Option(help="What comes first, is plotted, and where the gap is taken.")
    ] = Axis.TOKENS,
    smoothing: Annotated[
        float, typer.Option(help="Window of the local line, as a share of the baseline's tokens; 0: none.")
    ] = 0.02,
    force: Annotated[
        bool, typer.Option(help="Compare across different data orders and questions, and say so.")
    ] = False,
    as_json: JsonOption = False,
    to: Annotated[Path | None, typer.Option(help="Write a page with plots and tables here.")] = None,
) -> None:
    """Tokens and compute to the baseline's final loss, and evaluations side by side. Example: ncp compare base-1,base-2 ncp-1,ncp-2"""

    sides = [_runs(baseline, a), _runs(candidate, b)]
    if not all(sides):
        raise typer.BadParameter("give two runs, A (the baseline) and B; or --a and --b")
    opened = Storage(storage)
    found = compare_runs(opened, *sides, stages=stage or [], metric=metric, window=smoothing, force=force)
    if as_json:
        print(json.dumps({"by": by.value, **found.record()}, indent=1, allow_nan=False))
    else:
        print_comparison(out, found, by.value)
    if to is not None:
        runs = [run_report(opened, run) for run in dict.fromkeys([*sides[0], *sides[1]])]
        to.write_text(render_page(runs, comparison_views(found, by.value), found.notes))
        if not as_json:
            say(str(to))


def _runs(listed: str | None, repeated: list[str] | None) -> list[str]:
    names = [*(listed.split(",") if listed else []), *(repeated or [])]
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))
