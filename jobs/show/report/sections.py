"""The parts of a run's page, by name: a report holds all of them, a dashboard replaces those that have changed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from jobs.show.report.bars import bar, timeline
from jobs.show.report.dag_drawing import DagNode, draw_dag
from jobs.show.report.figures import training_charts
from jobs.show.report.model import EvaluationRow, RunReport, StageView
from jobs.show.report.tables import (
    checkpoints_table,
    downstream_table,
    heldout_table,
    mixture_table,
    status_pill,
    steps_table,
    suites_table,
)
from pipeline.quantities import duration, number, percent, si


def run_sections(run: RunReport, *, charts: bool = True) -> dict[str, str]:
    """Name -> HTML, in the order of the page; empty where there is nothing to show."""
    return {
        "summary": _header(run) + _alerts(run) + _tiles(run),
        "curriculum": _curriculum(run),
        "training": _training(run) if charts else "",
        "heldout": _heldout(run),
        "benchmarks": _benchmarks(run),
        "steps": _steps(run),
        "checkpoints": _checkpoints(run),
        "log": _log(run),
    }


def _header(run: RunReport) -> str:
    facts = {"Recipe": run.recipe, "Created": run.created, **run.facts}
    listed = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
    )
    description = f'<p class="lead">{escape(run.description)}</p>' if run.description else ""
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
    if run.rate is not None:
        left = f"{run.eta} of training left" if run.eta else ""
        tiles.append(_tile("Rate", si(run.rate), "tokens/s", left))
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
    return (
        '<h2>Curriculum</h2><p class="lead">Stages in order, as wide as their token budgets, and what each draws from.</p>'
        f'{timeline(run.stages)}<div class="stages">{"".join(map(_stage_card, run.stages))}</div>{mixture_table(run.stages)}'
    )


def _stage_card(stage: StageView) -> str:
    share = min(1.0, stage.tokens_done / stage.tokens_budget) if stage.tokens_budget else 0.0
    lines = [
        f"{si(stage.tokens_done)} of {si(stage.tokens_budget)} tokens, {percent(share, 0)}",
        f"step {stage.steps_done:,} of {stage.steps:,}",
        f"tokens {si(stage.first_token)} to {si(stage.last_token)} of the run",
        stage.note,
    ]
    text = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    now = f'<p class="now">{escape(stage.now)}</p>' if stage.now else ""
    return (
        f'<div class="stage-card panel"><div class="head"><h3>{escape(stage.name)}</h3>{status_pill(stage.status)}</div>'
        f"{bar(share)}{now}{text}</div>"
    )


def _training(run: RunReport) -> str:
    charts = training_charts([run])
    if not charts:
        return ""
    return (
        '<h2>Training</h2><p class="lead">Over tokens seen since the first stage. Pale: every logged step. '
        "Bold: a moving mean within the stage. The number is the last value; dashed lines are stage boundaries.</p>"
        f"{charts}"
    )


def _heldout(run: RunReport) -> str:
    if not any(row.heldout for row in run.evaluations):
        return ""
    return (
        '<h2>Held-out text</h2><p class="lead">Bits per byte of documents kept out of training; lower is '
        "better. Brackets: 95 % interval over documents. <i>unigram</i> is the best any model without context can "
        "do on these very tokens. A mixture is weighted as the stage named under it.</p>"
        f"{heldout_table(run.evaluations)}"
    )


def _benchmarks(run: RunReport) -> str:
    if not any(row.tasks for row in run.evaluations):
        return ""
    averages = ""
    if any(row.suites for row in run.evaluations):
        averages = f'<div class="gap">{suites_table(run.evaluations)}</div>'
    return (
        '<h2>Benchmarks</h2><p class="lead">Accuracy and standard error; green when more than two '
        "standard errors above guessing. Bits per byte of the correct answer tells models apart long before "
        f"accuracy does.</p>{downstream_table(run.evaluations)}{averages}"
    )


def _steps(run: RunReport) -> str:
    if not run.steps:
        return ""
    nodes = [
        DagNode(name=step.name, needs=step.needs, state=step.state, note=_node_note(step.seconds, step.state))
        for step in run.steps
    ]
    drawing = f'<div class="dag-frame panel scroll">{draw_dag(nodes)}</div>'
    return f"<h2>Steps</h2>{drawing}{steps_table(run.steps)}"


def _node_note(seconds: float | None, state: str) -> str:
    return state if seconds is None else f"{state}, {duration(seconds)}"


def _checkpoints(run: RunReport) -> str:
    if not run.checkpoints:
        return ""
    return (
        '<h2>Checkpoints</h2><p class="lead">Complete milestones that are kept: the first, the newest, and those at which a '
        f"stage of some run stops.</p>{checkpoints_table(run.checkpoints)}"
    )


def _log(run: RunReport) -> str:
    if not run.log:
        return ""
    return (
        '<h2>Log</h2><p class="lead">The end of it; all of it with <span class="mono">ncp logs</span>.</p>'
        f'<div class="log panel scroll" tabindex="0"><pre class="mono">{escape(run.log)}</pre></div>'
    )
