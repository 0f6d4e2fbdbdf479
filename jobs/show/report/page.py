"""The page: one HTML file from run reports. Everything that is not ours is escaped; nothing is fetched or executed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from jobs.show.report.figures import match_figure, training_charts
from jobs.show.report.model import ComparisonView, RunReport
from jobs.show.report.sections import run_sections
from jobs.show.report.side_by_side import differences_table, evaluations_side_by_side, stages_side_by_side
from jobs.show.report.style import CSS
from jobs.show.report.tables import comparison_table


def render_page(
    runs: Sequence[RunReport], comparisons: Sequence[ComparisonView] = (), notes: Sequence[str] = ()
) -> str:
    """The report on one run, or on several side by side. Raises ValueError for none.

    `notes`: sentences under the comparisons, such as why two runs were not compared.
    """
    if not runs:
        raise ValueError("report: no runs given; name at least one")
    title = " / ".join(run.name for run in runs)
    if len(runs) == 1:
        sections = run_sections(runs[0])
        parts = [*sections.values()]
        parts.insert(3, _comparisons(comparisons, notes))
        body = "".join(f"<section>{part}</section>" for part in parts if part) + _footer(runs[0])
    else:
        body = several_runs(runs, comparisons, notes)
    policy = f"default-src 'none'; style-src '{source_hash(CSS)}'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return document(f"{title} - ncp report", f"<main>{body}</main>", head=meta)


def several_runs(
    runs: Sequence[RunReport], comparisons: Sequence[ComparisonView] = (), notes: Sequence[str] = ()
) -> str:
    """The body of a page on several runs: what they share in common charts and tables, then each by itself."""
    parts = [
        f'<p class="eyebrow">ncp report</p><div class="title"><h1>{len(runs)} runs</h1></div>',
        _shared_charts(runs),
        _comparisons(comparisons, notes),
        evaluations_side_by_side(runs),
        stages_side_by_side(runs),
        differences_table(runs),
    ]
    body = "".join(f"<section>{part}</section>" for part in parts if part)
    for run in runs:
        own = "".join(part for part in run_sections(run, charts=False).values())
        body += f'<section class="run">{own}{_footer(run)}</section>'
    return body


def document(title: str, body: str, *, head: str = "", script: str = "") -> str:
    """A whole HTML document around `body`, with the style sheet and, for a live page, its script."""
    code = f"<script>{script}</script>" if script else ""
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body>{body}{code}</body></html>\n"
    )
    return text.encode(errors="replace").decode()  # a message may hold half of a surrogate pair


def source_hash(text: str) -> str:
    """`sha256-...` of an inline style or script, as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _comparisons(comparisons: Sequence[ComparisonView], notes: Sequence[str]) -> str:
    if not comparisons and not notes:
        return ""
    said = "".join(f'<p class="note-line">{escape(note)}</p>' for note in notes)
    rows = comparison_table(comparisons) if comparisons else ""
    figures = "".join(match_figure(one.chart) for one in comparisons if one.chart is not None)
    rows = f'<div class="charts">{figures}</div><div class="gap"></div>{rows}' if figures else rows
    return (
        '<h2>Comparison</h2><p class="lead">How much of the baseline\'s tokens, and of its compute, a run needs '
        "to reach the baseline's final training loss, both curves smoothed alike. Brackets: 95 % interval over seeds."
        f"</p>{rows}{said}"
    )


def _shared_charts(runs: Sequence[RunReport]) -> str:
    charts = training_charts(runs)
    if not charts:
        return ""
    return (
        '<h2>Training</h2><p class="lead">Over tokens seen since the first stage, the loss also over training compute. Pale: '
        "every logged step. Bold: a moving mean within the stage. Dashed lines are stage boundaries.</p>"
        + charts
    )


def _footer(run: RunReport) -> str:
    return f"<footer>{escape(run.name)}, recipe {escape(run.recipe)}, created {escape(run.created)}</footer>"
