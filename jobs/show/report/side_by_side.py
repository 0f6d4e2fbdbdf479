"""Several runs on one page: their stages, checkpoints and settings next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from curriculum.identity import flatten
from jobs.show.report.model import RunReport
from jobs.show.report.tables import downstream_table, heldout_table, status_pill, suites_table, table
from pipeline.quantities import MISSING, percent, si


def stages_side_by_side(runs: Sequence[RunReport]) -> str:
    """One line for each stage of each run."""
    settings = list(dict.fromkeys(name for run in runs for stage in run.stages for name in stage.settings))
    lines = []
    for run in runs:
        for index, stage in enumerate(run.stages):
            share = stage.tokens_done / stage.tokens_budget if stage.tokens_budget else 0.0
            cells = (
                f'<td class="left">{escape(stage.name)}</td><td class="left">{status_pill(stage.status)}</td>'
            )
            cells += f"<td>{si(stage.tokens_done)}<small>{percent(share, 0)} of {si(stage.tokens_budget)}</small></td>"
            cells += "".join(f"<td>{escape(stage.settings.get(name, MISSING))}</td>" for name in settings)
            lines.append(f"<tr><th>{escape(run.name) if index == 0 else ''}</th>{cells}</tr>")
    if not lines:
        return ""
    head = "<tr><th>Run</th><th class='left'>Stage</th><th class='left'>State</th><th>Tokens</th>"
    head += "".join(f"<th>{escape(name)}</th>" for name in settings) + "</tr>"
    return f"<h2>Stages</h2>{table(head, lines)}"


def evaluations_side_by_side(runs: Sequence[RunReport]) -> str:
    """Every checkpoint of every run; references are left to the runs' own tables."""
    rows = [
        replace(row, label=f"{run.name} / {row.label}")
        for run in runs
        for row in run.evaluations
        if not row.reference
    ]
    if not rows:
        return ""
    tables = [
        heldout_table(rows) if any(row.heldout for row in rows) else "",
        suites_table(rows) if any(row.suites for row in rows) else "",
        downstream_table(rows) if any(row.tasks for row in rows) else "",
    ]
    return (
        '<h2>Side by side</h2><p class="lead">Held-out bits per byte (95 % interval over documents) and benchmarks (standard '
        "error) of every checkpoint; each mixture is that of the checkpoint's own stage.</p>"
        + '<div class="gap"></div>'.join(filter(None, tables))
    )


def differences(configs: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Leaves that are not equal in all of `configs`, as (dotted path, the value of each), sorted; None where missing."""
    flat = [dict(flatten(config)) for config in configs]
    paths = sorted(set().union(*flat)) if flat else []
    rows = [(path, [one.get(path) for one in flat]) for path in paths]
    return [(path, values) for path, values in rows if any(value != values[0] for value in values[1:])]


def differences_table(runs: Sequence[RunReport]) -> str:
    """Where the runs' recipes differ; what cannot change a result (`runtime`) last and pale."""
    found = differences([run.config for run in runs])
    found.sort(key=lambda row: (_is_runtime(row[0]), row[0]))
    head = "<tr><th>Setting</th>" + "".join(f"<th class='left'>{escape(run.name)}</th>" for run in runs)
    lines = []
    for path, values in found:
        cells = "".join(f'<td class="left mono value">{_value(value)}</td>' for value in values)
        pale = ' class="same"' if _is_runtime(path) else ""
        lines.append(f'<tr{pale}><th class="mono">{escape(path)}</th>{cells}</tr>')
    body = table(head + "</tr>", lines) if lines else '<p class="note-line">None: the recipes are equal.</p>'
    return (
        '<h2>Differences</h2><p class="lead">Where the recipes differ, by dotted path. Pale: where and how fast, which no '
        f"result depends on.</p>{body}"
    )


def _is_runtime(path: str) -> bool:
    return path.split(".")[0] in ("runtime", "recipe", "description")


def _value(value: Any) -> str:
    return MISSING if value is None else escape(str(value))
