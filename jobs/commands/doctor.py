"""`ncp doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from jobs.commands.options import DEFAULT_STORAGE, JsonOption, StorageOption
from jobs.doctor import examine
from jobs.exit_codes import FAILED
from jobs.show.terminal import say


def doctor(
    storage: StorageOption = DEFAULT_STORAGE,
    address: Annotated[
        str | None, typer.Option(help="A cluster's job server to ask too, such as http://127.0.0.1:8265.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check versions, cluster, storage, GPUs, disk and memory; exit code 1 if something needed is missing. Example: ncp doctor"""
    checks = examine(storage, address)
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        for check in checks:
            mark = "ok" if check.ok else "MISSING" if check.needed else "-"
            say(f"{mark:<8} {check.name:<16} {check.found}")
            if not check.ok:
                say(f"{'':<25} {check.fix}")
    if any(check.needed and not check.ok for check in checks):
        raise typer.Exit(FAILED)
