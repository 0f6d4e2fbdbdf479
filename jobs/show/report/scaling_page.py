"""The page of a ladder: loss against compute on logarithmic axes, every rung a dot, a law a line, and the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from jobs.analysis.ladder_runs import BASELINE, CANDIDATE, FamilyLaws, LadderResult, RungRun
from jobs.analysis.scaling import Efficiency, LadderPoint
from jobs.show.report.style import CSS
from pipeline.quantities import number, si

_WIDTH, _HEIGHT = 1076, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 120, 24, 48
_COLORS = {CANDIDATE: "c0", BASELINE: "c1"}
_CSS = """
.dot { fill: currentColor; stroke: var(--panel); stroke-width: 1; }
.dot.off { fill-opacity: .3; }
.law { fill: none; stroke: currentColor; stroke-width: 2; }
.axis { stroke: var(--grid); }
text.end { font-weight: 600; font-size: 13px; fill: currentColor; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); }
"""


def render_scaling_page(result: LadderResult, runs: Sequence[RungRun]) -> str:
    """One self-contained HTML page; nothing is fetched or executed."""
    done = sum(run.loss is not None for run in runs)
    body = [
        '<header><p class="eyebrow">ncp scaling</p>',
        f'<div class="title"><h1>{escape(result.recipe)}</h1></div>',
        f'<p class="lead">{done} of {len(runs)} rungs are trained and evaluated. Loss is that of held-out text in nats '
        "per token; compute counts every floating point operation of the model's own shape, not 6ND.</p></header>",
        _gain(result.efficiency),
        f'<section><h2>Loss and compute</h2><figure class="panel hero">{scaling_chart(result)}</figure></section>',
        _laws(result),
        _rungs(runs),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(result.recipe)} - ncp scaling</title><style>{CSS}{_CSS}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def scaling_chart(result: LadderResult) -> str:
    """The SVG: dots on the frontier are full, the others pale."""
    points = [point for laws in result.families.values() for point in laws.points]
    if not points:
        return f'<svg viewBox="0 0 {_WIDTH} 80"><text x="20" y="44">no rung is done yet</text></svg>'
    x = _Axis([point.budget for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([point.loss for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(x, y)]
    for name, laws in result.families.items():
        parts.append(f'<g class="{_COLORS.get(name, "c2")}">{_family(name, laws, x, y)}</g>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="held-out loss over compute">'
        f"{''.join(parts)}</svg>"
    )


class _Axis:
    """Logarithmic positions with a margin around the values."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        low, high = math.log(min(values)), math.log(max(values))
        margin = 0.06 * (high - low) or 0.05
        self.low, self.high = low - margin, high + margin
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        return [math.exp(self.low + (index + 0.5) / count * (self.high - self.low)) for index in range(count)]


def _grid(x: _Axis, y: _Axis) -> str:
    parts = []
    for value in y.ticks(5):
        at = y.at(value)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{x.end:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:.3f}</text>'
        )
    for value in x.ticks(5):
        parts.append(
            f'<text class="tick" x="{x.at(value):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{value:.1e}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(_LEFT + x.end) / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">training FLOPs</text>'
    )
    return "".join(parts)


def _family(name: str, laws: FamilyLaws, x: _Axis, y: _Axis) -> str:
    best = set(laws.frontier)
    parts = [_dot(point, x, y, on=point in best) for point in laws.points]
    if laws.power_law is not None:
        ends = [laws.frontier[0].budget, laws.frontier[-1].budget]
        path = " L".join(f"{x.at(c):.1f} {y.at(laws.power_law.loss(c)):.1f}" for c in ends)
        parts.append(f'<path class="law" d="M{path}"/>')
    if laws.frontier:
        last = laws.frontier[-1]
        parts.append(
            f'<text class="end" x="{x.at(last.budget) + 12:.1f}" y="{y.at(last.loss) + 4:.1f}">{escape(name)}</text>'
        )
    return "".join(parts)


def _dot(point: LadderPoint, x: _Axis, y: _Axis, *, on: bool) -> str:
    return (
        f'<circle class="dot{"" if on else " off"}" cx="{x.at(point.budget):.1f}" cy="{y.at(point.loss):.1f}" r="5">'
        f"<title>{escape(point.label)}: {point.loss:.4f}</title></circle>"
    )


def _gain(gain: Efficiency | None) -> str:
    if gain is None:
        return ""
    low, high = gain.ratio_interval or (None, None)
    interval = (
        f"95 % interval {number(low)} to {number(high)}, from resampled residuals"
        if low
        else ("no interval: a frontier has only two budgets")
    )
    return (
        '<div class="tiles"><div class="tile panel"><p class="name">Compute efficiency</p>'
        f'<p class="figure">{gain.ratio:.3f} <small>times</small></p>'
        f'<p class="note">{interval}; {gain.at_largest:.3f} at the largest budget. How much more compute '
        f"{BASELINE} needs for {CANDIDATE}'s loss, geometric mean over the budgets.</p></div></div>"
    )


def _laws(result: LadderResult) -> str:
    rows = []
    for name, laws in result.families.items():
        law, wide = laws.power_law, laws.chinchilla
        power = f"log L = {law.a:.4f} - {law.b:.5f} log C (rms {law.residual:.1e})" if law else "-"
        chinchilla = (
            f"L = {wide.irreducible:.3f} + {number(wide.a)}/N^{wide.alpha:.3f} + {number(wide.b)}/D^{wide.beta:.3f} "
            f"(rms {wide.residual:.1e})"
            if wide
            else "-"
        )
        rows.append(
            f"<tr><th>{escape(name)}</th><td>{power}</td><td>{chinchilla}</td><td class=words>{escape(laws.missing)}</td></tr>"
        )
    head = "<tr><th></th><th>of the frontier</th><th>of all points</th><th></th></tr>"
    return f'<section><h2>Laws</h2><div class="panel scroll"><table>{head}{"".join(rows)}</table></div></section>'


def _rungs(runs: Sequence[RungRun]) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("rung", "parameters", "tokens", "FLOPs", "loss", "state", "run")
    )
    rows = [
        f"<tr><th>{escape(run.rung.name)}</th><td>{si(run.rung.parameters)}</td><td>{si(run.rung.tokens)}</td>"
        f"<td>{run.rung.flops:.3g}</td><td>{'-' if run.loss is None else f'{run.loss:.4f}'}</td>"
        f"<td>{escape(run.state)}</td><td>{escape(run.run)}</td></tr>"
        for run in runs
    ]
    return f'<section><h2>Rungs</h2><div class="panel scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div></section>'
