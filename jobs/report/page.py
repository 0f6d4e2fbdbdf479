"""The page: one HTML file from run reports. Everything that is not ours is escaped; nothing is fetched or executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import numpy as np

from jobs.report.chart import Boundary, Series, line_chart
from jobs.report.model import ComparisonView, Curve, EvaluationRow, RunReport
from jobs.report.scale import number, percent, si
from jobs.report.style import CSS
from jobs.report.tables import (
    comparison_table,
    downstream_table,
    heldout_table,
    mixture_table,
    status_pill,
    steps_table,
)

CURVE_ORDER = ("ntp", "ncp", "vq", "lr", "grad_norm", "tokens_per_second")
"""Charts come in this order, others after them; the first one is drawn large."""

_HERO_SIZES = (("wide", 1076, 320), ("medium", 640, 270), ("narrow", 344, 230))


def render_page(runs: Sequence[RunReport], comparisons: Sequence[ComparisonView] = ()) -> str:
    """The report on one run, or on several with their curves in the same charts. Raises ValueError for none."""
    if not runs:
        raise ValueError("report: no runs given; name at least one")
    title = " / ".join(run.name for run in runs)
    if len(runs) == 1:
        (run,) = runs
        body = [_header(run), _alerts(run), _tiles(run), _curriculum(run), _curves(runs)]
        body += [_comparisons(comparisons), *_tables(run)]
    else:
        body = ['<p class="eyebrow">ncp report</p>', f'<div class="title"><h1>{len(runs)} runs</h1></div>']
        body += [_curves(runs), _comparisons(comparisons), _side_by_side(runs)]
        for run in runs:
            body += [
                '<section class="run">', _header(run), _alerts(run), _tiles(run), _curriculum(run), *_tables(run), "</section>"
            ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - ncp report</title><style>{CSS}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _comparisons(comparisons: Sequence[ComparisonView]) -> str:
    if not comparisons:
        return ""
    return (
        '<section><h2>Comparison</h2><p class="lead">How much of the baseline\'s tokens, and of its compute, a run needs '
        "to reach the baseline's final training loss, both curves smoothed alike. Brackets: 95 % interval over seeds."
        f"</p>{comparison_table(comparisons)}</section>"
    )


def _side_by_side(runs: Sequence[RunReport]) -> str:
    """Every checkpoint of every run in one table; references are left to the runs' own tables."""
    rows = [
        replace(row, label=f"{run.name} / {row.label}")
        for run in runs
        for row in run.evaluations
        if not row.reference
    ]
    if not rows:
        return ""
    benchmarks = downstream_table(rows) if any(row.tasks for row in rows) else ""
    return (
        '<section><h2>Side by side</h2><p class="lead">Held-out bits per byte and benchmarks of every checkpoint; each '
        f"mixture is that of the checkpoint's own stage.</p>{heldout_table(rows)}"
        f'<div style="height:14px"></div>{benchmarks}</section>'
    )


def _header(run: RunReport) -> str:
    facts = {"Recipe": run.recipe, "Created": run.created, **run.facts}
    listed = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
    )
    description = (
        f'<p class="lead" style="margin:8px 0 0">{escape(run.description)}</p>' if run.description else ""
    )
    return (
        '<header><p class="eyebrow">ncp run</p>'
        f'<div class="title"><h1>{escape(run.name)}</h1>{status_pill(run.status)}</div>'
        f'{description}<dl class="facts">{listed}</dl></header>'
    )


def _alerts(run: RunReport) -> str:
    if not run.alerts:
        return ""
    order = {"error": 0, "warning": 1}
    items = []
    for alert in sorted(run.alerts, key=lambda alert: order.get(alert.severity, 2)):
        kind = alert.severity if alert.severity in order else "info"
        when = f"<time>{escape(alert.when)}</time>" if alert.when else ""
        items.append(f'<li class="{kind}"><b>{escape(alert.severity)}</b> {escape(alert.message)}{when}</li>')
    return f'<ul class="alerts">{"".join(items)}</ul>'


def _tiles(run: RunReport) -> str:
    tiles = []
    if run.stages:
        done, budget = (
            sum(getattr(stage, name) for stage in run.stages) for name in ("tokens_done", "tokens_budget")
        )
        share = done / budget if budget else 0.0
        stages = f"{len(run.stages)} stages" if len(run.stages) > 1 else "1 stage"
        tiles.append(
            _tile("Tokens", si(done), f"of {si(budget)}", f"{percent(share, 0)} of the budget, {stages}")
        )
    ntp = next((curve for curve in run.curves if curve.key == "ntp"), None)
    if ntp is not None:
        values = np.asarray(ntp.y, dtype=float)
        values = values[np.isfinite(values)]
        if len(values):
            tail = values[-max(1, len(values) // 40) :]
            note = f"mean of the last {len(tail)} steps, from {number(float(values[0]), 3)}"
            tiles.append(_tile("Next-token loss", number(float(tail.mean()), 4), ntp.unit, note))
    tiles += _evaluation_tiles(run.evaluations)
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _evaluation_tiles(rows: Sequence[EvaluationRow]) -> list[str]:
    """The last checkpoint's bits per byte against the unigram model, and what its concepts are worth."""
    trained = [row for row in rows if not row.reference and row.mixture_bits_per_byte is not None]
    if not trained:
        return []
    last = trained[-1]
    value = last.mixture_bits_per_byte
    assert value is not None
    same = [row for row in rows if row.label == "unigram" and row.mixture == last.mixture]
    unigram = same[0].mixture_bits_per_byte if same else None
    note = f"after {last.label}" + (f", {value / unigram:.2f}x the unigram model" if unigram else "")
    tiles = [_tile("Held-out text", number(value, 4), "bits per byte", note)]
    zeroed = next((row for row in rows if row.label == f"{last.label}, concept zeroed"), None)
    if zeroed is not None and zeroed.mixture_bits_per_byte is not None:
        worth = zeroed.mixture_bits_per_byte - value
        tiles.append(
            _tile(
                "Concepts are worth",
                f"{worth:+.3f}",
                "bits per byte",
                "lost when the injected concept is zero",
            )
        )
    return tiles


def _tile(name: str, figure: str, unit: str, note: str) -> str:
    return (
        f'<div class="tile panel"><p class="name">{escape(name)}</p>'
        f'<p class="figure">{escape(figure)} <small>{escape(unit)}</small></p><p class="note">{escape(note)}</p></div>'
    )


def _curriculum(run: RunReport) -> str:
    if not run.stages:
        return ""
    parts = []
    for stage in run.stages:
        share = min(1.0, stage.tokens_done / stage.tokens_budget) if stage.tokens_budget else 0.0
        note = f"<p>{escape(stage.note)}</p>" if stage.note else ""
        parts.append(
            f'<div style="--share:{max(stage.tokens_budget, 1)}">'
            f'<span class="bar"><i style="--w:{100 * share:.2f}%"></i></span>'
            f'<div class="head"><h3>{escape(stage.name)}</h3>{status_pill(stage.status)}</div>'
            f"<p>{si(stage.tokens_done)} of {si(stage.tokens_budget)} tokens</p>"
            f"<p>step {stage.steps_done:,} of {stage.steps:,}</p>"
            f"<p>tokens {si(stage.first_token)} to {si(stage.last_token)} of the run</p>{note}</div>"
        )
    return (
        '<section><h2>Curriculum</h2><p class="lead">Stages in order, drawn as wide as their token budgets where there is room, and what each '
        f'draws from.</p><div class="stages">{"".join(parts)}</div>{mixture_table(run.stages)}</section>'
    )


def _curves(runs: Sequence[RunReport]) -> str:
    keys = list(dict.fromkeys(curve.key for run in runs for curve in run.curves))
    keys.sort(key=lambda key: CURVE_ORDER.index(key) if key in CURVE_ORDER else len(CURVE_ORDER))
    if not keys:
        return ""
    figures = [_figure(runs, key, hero=index == 0) for index, key in enumerate(keys)]
    legend = ""
    if len(runs) > 1:
        names = "".join(
            f'<span class="c{index % 8}">{escape(run.name)}</span>' for index, run in enumerate(runs)
        )
        legend = f'<div class="legend">{names}</div>'
    return (
        '<section><h2>Training</h2><p class="lead">Over tokens seen since the first stage. Pale: every logged step. '
        "Bold: a moving mean within the stage. The number is the last value; dashed lines are stage boundaries.</p>"
        f'{legend}<div class="charts">{"".join(figures)}</div></section>'
    )


def _figure(runs: Sequence[RunReport], key: str, hero: bool) -> str:
    found: list[tuple[int, RunReport, Curve]] = [
        (index, run, curve) for index, run in enumerate(runs) for curve in run.curves if curve.key == key
    ]
    first = found[0][2]
    series = [
        Series(
            name=run.name,
            x=np.asarray(curve.x, dtype=float),
            y=np.asarray(curve.y, dtype=float),
            color=index % 8,
            smooth=curve.smooth,
        )
        for index, run, curve in found
    ]
    boundaries = {(stage.first_token, stage.name) for _, run, _ in found for stage in run.stages}
    marks = [Boundary(x=x, label=label) for x, label in sorted(boundaries)]
    ends = [float(one.x[-1]) for one in series if len(one.x)]
    starts = [float(one.x[0]) for one in series if len(one.x)]
    x_range = (min([0.0, *starts]), max(ends, default=1.0))
    missing = sum(_missing(one.y) for one in series)
    caption = f"<h3>{escape(first.title)}</h3>"
    if first.unit or first.log:
        caption += (
            f"<span>{escape(', '.join(filter(None, (first.unit, 'log scale' if first.log else ''))))}</span>"
        )
    if missing:
        caption += f'<span class="failed">{missing:,} value{"s" if missing > 1 else ""} not finite</span>'
    description = f"{first.title} over tokens"
    sizes = _HERO_SIZES if hero else (("", 352, 220),)
    charts = []
    for name, width, height in sizes:
        chart = line_chart(
            series,
            title=description,
            x_range=x_range,
            boundaries=marks,
            width=width,
            height=height,
            log=first.log,
            named=hero,
        )
        charts.append(f'<div class="{name}">{chart}</div>' if name else chart)
    return f'<figure class="panel{" hero" if hero else ""}"><figcaption>{caption}</figcaption>{"".join(charts)}</figure>'


def _missing(values: np.ndarray) -> int:
    return int((~np.isfinite(values)).sum())


def _tables(run: RunReport) -> list[str]:
    sections = []
    if run.evaluations:
        sections.append(
            '<section><h2>Held-out text</h2><p class="lead">Bits per byte of documents kept out of training; lower is '
            "better. Brackets: 95 % interval over documents. <i>unigram</i> is the best any model without context can "
            f"do on these very tokens. A mixture is weighted as the stage named under it.</p>{heldout_table(run.evaluations)}</section>"
        )
        if any(row.tasks for row in run.evaluations):
            sections.append(
                '<section><h2>Benchmarks</h2><p class="lead">Accuracy and standard error; green when more than two '
                "standard errors above guessing. Bits per byte of the correct answer tells models apart long before "
                f"accuracy does.</p>{downstream_table(run.evaluations)}</section>"
            )
    if run.steps:
        sections.append(f"<section><h2>Steps</h2>{steps_table(run.steps)}</section>")
    sections.append(
        f"<footer>{escape(run.name)}, recipe {escape(run.recipe)}, created {escape(run.created)}</footer>"
    )
    return sections
