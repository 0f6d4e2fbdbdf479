"""The training charts of one run, or of several together, over tokens or over compute."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from jobs.show.report.chart import Boundary, Level, Series, line_chart
from jobs.show.report.model import Curve, MatchChart, RunReport, Values
from pipeline.quantities import number, percent

CURVE_ORDER = ("ntp", "ncp", "vq", "lr", "grad_norm", "tokens_per_second")
"""Charts come in this order, others after them; the first one is drawn large."""

_HERO_SIZES = (("wide", 1076, 320), ("medium", 640, 270), ("narrow", 344, 230))
_AXES = {"tokens": "tokens", "flops": "training FLOPs"}


def training_charts(runs: Sequence[RunReport]) -> str:
    """All curves over tokens; of several runs, the loss also over compute. Empty without any curve."""
    keys = list(dict.fromkeys(curve.key for run in runs for curve in run.curves))
    keys.sort(key=lambda key: CURVE_ORDER.index(key) if key in CURVE_ORDER else len(CURVE_ORDER))
    if not keys:
        return ""
    figures = [_figure(runs, key, hero=index == 0) for index, key in enumerate(keys)]
    if len(runs) > 1 and all(
        _over(curve, "flops") is not None for run in runs for curve in run.curves if curve.key == keys[0]
    ):
        figures.insert(1, _figure(runs, keys[0], hero=True, axis="flops"))
    return f'{_legend(runs)}<div class="charts">{"".join(figures)}</div>'


def _legend(runs: Sequence[RunReport]) -> str:
    if len(runs) < 2:
        return ""
    names = "".join(f'<span class="c{index % 8}">{escape(run.name)}</span>' for index, run in enumerate(runs))
    return f'<div class="legend">{names}</div>'


def _over(curve: Curve, axis: str) -> Values | None:
    return curve.x if axis == "tokens" else curve.flops


def _figure(runs: Sequence[RunReport], key: str, *, hero: bool, axis: str = "tokens") -> str:
    found: list[tuple[int, RunReport, Curve]] = [
        (index, run, curve) for index, run in enumerate(runs) for curve in run.curves if curve.key == key
    ]
    first = found[0][2]
    series = [
        Series(
            name=run.name,
            x=np.asarray(_over(curve, axis), dtype=float),
            y=np.asarray(curve.y, dtype=float),
            color=index % 8,
            smooth=curve.smooth,
        )
        for index, run, curve in found
    ]
    boundaries = {(stage.first_token, stage.name) for _, run, _ in found for stage in run.stages}
    marks = [Boundary(x=x, label=label) for x, label in sorted(boundaries)] if axis == "tokens" else []
    ends = [float(one.x[-1]) for one in series if len(one.x)]
    starts = [float(one.x[0]) for one in series if len(one.x)]
    x_range = (min([0.0, *starts]), max(ends, default=1.0))
    missing = sum(int((~np.isfinite(one.y)).sum()) for one in series)
    about = [first.unit, "log scale" if first.log else "", "over training FLOPs" if axis == "flops" else ""]
    caption = f"<h3>{escape(first.title)}</h3>"
    if any(about):
        caption += f"<span>{escape(', '.join(filter(None, about)))}</span>"
    if missing:
        caption += f'<span class="failed">{missing:,} value{"s" if missing > 1 else ""} not finite</span>'
    charts = []
    for name, width, height in _HERO_SIZES if hero else (("", 352, 220),):
        chart = line_chart(
            series,
            title=f"{first.title} over {_AXES[axis]}",
            x_range=x_range,
            boundaries=marks,
            width=width,
            height=height,
            log=first.log,
            named=hero,
            x_title=_AXES[axis],
        )
        charts.append(f'<div class="{name}">{chart}</div>' if name else chart)
    return f'<figure class="panel{" hero" if hero else ""}"><figcaption>{caption}</figcaption>{"".join(charts)}</figure>'


def match_figure(chart: MatchChart) -> str:
    """How soon a candidate reaches the baseline's final loss: both curves, the loss, and the place."""
    series = [
        Series(
            name=name, x=np.asarray(x, dtype=float), y=np.asarray(y, dtype=float), color=index, smooth=False
        )
        for index, (name, x, y) in enumerate(zip(chart.names, chart.x, chart.y, strict=True))
    ]
    ends = [float(one.x[-1]) for one in series]
    label = f"{number(chart.target, 4)}, never reached"
    if chart.reached is not None:
        label = f"{number(chart.target, 4)} at {percent(chart.reached / ends[0])} of the baseline's {'compute' if chart.axis == 'flops' else 'tokens'}"
    drawn = "".join(
        f'<div class="{name}">'
        + line_chart(
            series,
            title=chart.title,
            x_range=(0.0, max(ends)),
            width=width,
            height=height,
            x_title=_AXES[chart.axis],
            level=Level(y=chart.target, x=chart.reached, label=label),
        )
        + "</div>"
        for name, width, height in _HERO_SIZES
    )
    return (
        f'<figure class="panel hero"><figcaption><h3>{escape(chart.title)}</h3></figcaption>{drawn}</figure>'
    )
