"""`ncp eval`: suites on checkpoints, here or as a Ray Job."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from curriculum.schema import EvaluationSpec
from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.evaluate import evaluate_checkpoints, find_checkpoints, print_result
from jobs.evaluation.catalogue import catalogue
from jobs.evaluation.own_data import is_hub_id
from jobs.evaluation.submission import follow_evaluation, submit_evaluation
from jobs.evaluation.suites import SUITES
from jobs.exit_codes import STOPPED, print_failures
from jobs.runs.evaluation_points import evaluation_points
from jobs.runs.record import read_run
from pipeline.dag.runner import Stopped
from pipeline.storage import Storage


def evaluate(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHECKPOINT]...",
            help="RUN, RUN/STAGE, RUN/STAGE@STEP, or RUN/STAGE@all for every milestone there is.",
        ),
    ] = None,
    stage: Annotated[str | None, typer.Option(help="The stage of checkpoints that name none.")] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"A suite ({', '.join(SUITES)}) or a task; may be given several times."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Questions per task, drawn with a fixed seed; 0: all.")
    ] = 0,
    heldout_tokens: Annotated[
        int, typer.Option(min=0, help="Held-out tokens per source; 0: none.")
    ] = 262_144,
    data: Annotated[
        str | None,
        typer.Option(
            help="Questions from this directory, URL or Hub dataset org/name, laid out as the published package."
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(min=1, help="Actors to spread the work over; the numbers do not depend on it."),
    ] = None,
    unsafe_execution: Annotated[
        bool, typer.Option(help="Run generated programs where they cannot be contained.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Submit it as a Ray Job to this job server instead.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="With --address: the interpreter on the head node.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="With --address: wait for the job, show its output.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what a run wants evaluated and what became of it, and end.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the tasks of the suites and end.")] = False,
    as_json: JsonOption = False,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Evaluate milestones, once: what was evaluated before is shown. Example: ncp eval demo-1a2b3c --stage stage1 --suite quick --limit 50"""
    if show or not checkpoints:
        _list_suites(tuple(suite or SUITES), data)
        return
    opened = Storage(storage)
    if plan:
        for name in checkpoints:
            _print_points(opened, name.partition("/")[0], as_json)
        return
    if address is not None:
        options = {
            "--stage": stage,
            "--limit": limit,
            "--heldout-tokens": heldout_tokens,
            "--data": data,
            "--actors": actors,
        }
        arguments = [*checkpoints]
        arguments += [text for name in suite or [] for text in ("--suite", name)]
        arguments += [
            text for name, value in options.items() if value is not None for text in (name, str(value))
        ]
        arguments += (["--unsafe-execution"] if unsafe_execution else []) + (["--json"] if as_json else [])
        raise typer.Exit(_submit(opened, address, checkpoints[0], arguments, python, follow))
    spec = EvaluationSpec(suites=tuple(suite or ["quick"]), limit=limit, heldout_tokens=heldout_tokens)
    raise typer.Exit(
        _evaluate(opened, checkpoints, stage, spec, data, actors, unsafe_execution, as_json=as_json)
    )


def _evaluate(
    storage: Storage,
    checkpoints: list[str],
    stage: str | None,
    spec: EvaluationSpec,
    data: str | None,
    actors: int | None,
    unsafe_execution: bool,
    *,
    as_json: bool,
) -> int:
    """The exit code: of the last checkpoint that failed, else 0."""

    references = find_checkpoints(storage, checkpoints, stage)
    code = 0
    try:
        for evaluated in evaluate_checkpoints(
            storage,
            references,
            spec,
            questions=data,
            actors=actors,
            unsafe_execution=unsafe_execution,
        ):
            reference, receipt = evaluated.reference, evaluated.receipt
            if receipt is None:
                code = print_failures(evaluated.outcome)
                continue
            if len(references) > 1 and not as_json:
                print(f"{reference.stage} step {reference.step}")
            if as_json:
                print(json.dumps(receipt["result"], indent=1))
            else:
                print_result(receipt, print)
                for name, key in receipt.get("suites", {}).items():
                    print(f"{name}: {storage.uri(key)}")
    except Stopped as stop:
        print(f"{stop}; run the same command again to resume")
        return STOPPED
    return code


def _list_suites(suites: tuple[str, ...], data: str | None) -> None:
    """The questions of a place that is no directory here are not fetched to be counted."""

    local = Path(data) if data is not None and "://" not in data and not is_hub_id(data) else None
    for name in suites:
        lines = catalogue(name, local)
        print(f"{name}:")
        for line in lines:
            questions = "-" if line.questions is None else f"{line.questions:,}"
            print(f"  {line.family:<18} {line.task:<40} {questions:>8}  {line.metric}, {line.shots} shots")


def _print_points(storage: Storage, run: str, as_json: bool) -> None:
    points = evaluation_points(storage, run)
    if as_json:
        print(json.dumps([asdict(point) for point in points], indent=1))
        return
    for point in points:
        print(f"{point.name:<28} {point.stage} step {point.milestone:<9} {point.state:<9} {point.detail}")
    if not points:
        print(f"{run}: wants nothing evaluated; see evaluation.suites and evaluation.heldout_tokens")


def _submit(
    storage: Storage, address: str, checkpoint: str, arguments: list[str], python: str | None, follow: bool
) -> int:

    run = checkpoint.partition("/")[0].partition("@")[0]
    read_run(storage, run)
    submission = submit_evaluation(storage, address, run, arguments, python=python)
    print(f"{run}: evaluation submitted to {address} as {submission}")
    return follow_evaluation(address, submission, print) if follow else 0
