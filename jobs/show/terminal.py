"""What commands share when they print: one console, plain lines, the evaluation table."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.table import Table

from jobs.runs.evaluation_table import evaluation_rows
from jobs.runs.record import read_run
from pipeline.storage import Storage

PLAIN_WIDTH = 160
"""Columns of a table that is written to a file or a pipe, where nobody's terminal sets them."""
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def say(text: str) -> None:
    """One line, at once. When nobody reads any more, the command goes on without a word: a run is no less a run."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_evaluations(storage: Storage, run: str) -> None:
    record = read_run(storage, run)
    rows = [row for row in evaluation_rows(storage, record) if row.sources]
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
