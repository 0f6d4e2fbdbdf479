"""Line charts as inline SVG: axes, ticks, stage boundaries, direct labels. No script, bounded size.

A chart draws each curve twice: every value, thin and pale, and a moving mean over it, bold, that never looks across a
stage boundary. However many points come in, a curve's path has at most some two thousand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise, zip_longest

import numpy as np

from jobs.show.report.scale import Array, linear_ticks, log_ticks, si_ticks, smooth, thin
from pipeline.quantities import number

SMOOTHING = 40
"""The moving mean spans one part in this many of a stage's points."""
SMOOTH_FROM = 60
"""Curves with fewer points are drawn as they are."""

_LEFT, _TOP, _BOTTOM = 50, 24, 42
_CHARACTER = 6.3
"""Width of a character of the labels, in user units."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: `x` ascending, `y` with NaN where a value is missing."""

    name: str
    x: Array
    y: Array
    color: int
    """Index of the colour class, c0 to c7."""
    smooth: bool = True
    """Draw a moving mean over it."""


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A vertical line where a stage begins, labelled to its right."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line at `y`, from where a curve reaches it (a dot and a dropped line) to the end of the chart."""

    y: float
    x: float | None
    """None: nothing reaches it, and the line runs through."""
    label: str


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_range: tuple[float, float],
    boundaries: Sequence[Boundary] = (),
    width: int = 360,
    height: int = 220,
    log: bool = False,
    named: bool = True,
    x_title: str = "tokens",
    level: Level | None = None,
) -> str:
    """The SVG of one chart. Curves without any finite value leave an empty frame that says so.

    With `named`, several curves carry their names at their ends; without, only their last values (the page then has
    a legend). A long curve whose first steps tower over all the rest is cut there, and the chart says how high it was.
    """
    series = [_clean(one, log) for one in series]
    values = np.concatenate([one.y[np.isfinite(one.y)] for one in series]) if series else np.array([])
    low, high = x_range if x_range[1] > x_range[0] else (x_range[0], x_range[0] + 1)
    labels = {one.name: _end_label(one, named=named and len(series) > 1) for one in series}
    right = 14 + _CHARACTER * max((len(label) for label in labels.values()), default=0)
    settled = np.concatenate([_settled(one) for one in series]) if series else values
    y_range = _y_range(settled, log)
    box = _Box(width=width, height=height, right=right, x=(low, high), y=y_range, log=log, x_title=x_title)
    parts = [_grid(box, len(values) > 0), _stages(box, boundaries)]
    if len(values) and values.max() > y_range[1]:
        parts.append(
            f'<text class="tick" x="{_LEFT + 8}" y="{_TOP + 12}">starts at {number(float(values.max()), 3)}, above the frame</text>'
        )
    for one in series:
        parts.append(_curve(box, one, [boundary.x for boundary in boundaries]))
    parts.append(_labels(box, series, labels))
    if level is not None:
        parts.append(_level(box, level))
    if not len(values):
        parts.append(f'<text class="empty" x="{box.centre:.0f}" y="{height / 2:.0f}">no values yet</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'


@dataclass(frozen=True, kw_only=True)
class _Box:
    width: int
    height: int
    right: float
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool
    x_title: str

    @property
    def plot_right(self) -> float:
        return self.width - self.right

    @property
    def plot_bottom(self) -> float:
        return self.height - _BOTTOM

    @property
    def centre(self) -> float:
        return (_LEFT + self.plot_right) / 2

    def to_x(self, value: Array | float) -> Array:
        share = (np.asarray(value, dtype=float) - self.x[0]) / (self.x[1] - self.x[0])
        return _LEFT + share * (self.plot_right - _LEFT)

    def to_y(self, value: Array | float) -> Array:
        low, high = self.y
        values = np.asarray(value, dtype=float)
        if self.log:
            values, low, high = np.log10(values), math.log10(low), math.log10(high)
        return self.plot_bottom - (values - low) / (high - low) * (self.plot_bottom - _TOP)


def _clean(one: Series, log: bool) -> Series:
    y = np.asarray(one.y, dtype=float)
    bad = ~np.isfinite(y) | ((y <= 0) if log else False)
    return dataclasses.replace(one, x=np.asarray(one.x, dtype=float), y=np.where(bad, np.nan, y))


def _y_range(values: Array, log: bool) -> tuple[float, float]:
    if not len(values):
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        return (low / 1.15, high * 1.15)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return (low - margin, high + margin)
    margin = 0.06 * (high - low)
    # A scale that nearly reaches zero is easier to read when it does.
    bottom = 0.0 if low >= 0 and low < 0.25 * high else low - margin
    return (bottom, high + margin)


def _settled(one: Series) -> Array:
    """The finite values, without the first hundredth of a long curve if that alone would fill most of the frame."""
    finite = one.y[np.isfinite(one.y)]
    rest = finite[len(finite) // 100 :]
    if len(finite) < 1000 or not len(rest) or finite.max() - rest.min() < 2 * (rest.max() - rest.min()):
        return finite
    return rest


def _grid(box: _Box, filled: bool) -> str:
    parts = []
    if filled:
        ticks = (
            log_ticks(*box.y) if box.log else linear_ticks(*box.y, count=max(2, round(box.plot_bottom / 45)))
        )
        for tick, label in zip(ticks, _y_labels(ticks, box.log), strict=True):
            y = float(box.to_y(tick))
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{box.plot_right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(
                f'<text class="tick" text-anchor="end" x="{_LEFT - 7}" y="{y + 3.6:.1f}">{label}</text>'
            )
    ticks = linear_ticks(*box.x, count=max(2, round((box.plot_right - _LEFT) / 75)))
    bottom = box.plot_bottom
    for tick, label in zip(ticks, _x_labels(ticks), strict=True):
        x = float(box.to_x(tick))
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 16:.1f}">{label}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{box.plot_right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>'
    )
    parts.append(
        f'<text class="tick axis-title" text-anchor="middle" x="{box.centre:.1f}" y="{box.height - 6}">{escape(box.x_title)}</text>'
    )
    return "".join(parts)


def _x_labels(ticks: Sequence[float]) -> list[str]:
    """Tokens as 1.5B; what is beyond a quadrillion, such as FLOPs, as 2e19."""
    if max((abs(tick) for tick in ticks), default=0.0) < 1e15:
        return si_ticks(ticks)
    return [number(tick, 2) for tick in ticks]


def _y_labels(ticks: Sequence[float], log: bool) -> list[str]:
    largest = max((abs(tick) for tick in ticks), default=0.0)
    smallest = min((abs(tick) for tick in ticks if tick), default=0.0)
    if largest >= 10_000:
        return si_ticks(ticks)
    if smallest and largest < 0.001:
        return [number(tick, 2) for tick in ticks]
    if log:
        return [number(tick, 1) for tick in ticks]
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return [f"{tick:.{decimals}f}" for tick in ticks]


def _stages(box: _Box, boundaries: Sequence[Boundary]) -> str:
    parts = []
    inside = [boundary for boundary in boundaries if box.x[0] <= boundary.x < box.x[1]]
    for boundary, following in zip_longest(inside, inside[1:]):
        x = float(box.to_x(boundary.x))
        end = float(box.to_x(following.x)) if following else box.plot_right
        if boundary.x > box.x[0]:
            parts.append(f'<line class="stage" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{box.plot_bottom:.1f}"/>')
        room = int((end - x - 8) / _CHARACTER)
        if room >= 3:
            label = boundary.label if len(boundary.label) <= room else boundary.label[: room - 1] + "\u2026"
            parts.append(f'<text class="stage-label" x="{x + 5:.1f}" y="16">{escape(label)}</text>')
    return "".join(parts)


def _curve(box: _Box, one: Series, boundaries: Sequence[float]) -> str:
    finite = np.isfinite(one.y)
    if finite.sum() == 1:
        x, y = float(box.to_x(one.x[finite][0])), float(box.to_y(one.y[finite][0]))
        return f'<circle class="dot c{one.color}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    buckets = max(1, int(box.plot_right - _LEFT))
    raw = _path(box, *thin(one.x, one.y, buckets))
    if len(one.x) < SMOOTH_FROM or not one.smooth:
        return f'<path class="line c{one.color}" d="{raw}"/>'
    parts = [f'<path class="raw c{one.color}" d="{raw}"/>']
    edges = [0, *sorted(int(np.searchsorted(one.x, edge, side="right")) for edge in boundaries), len(one.x)]
    for start, stop in pairwise(edges):
        if stop - start > 1:
            mean = smooth(one.y[start:stop], max(3, (stop - start) // SMOOTHING))
            parts.append(
                f'<path class="line c{one.color}" d="{_path(box, *thin(one.x[start:stop], mean, buckets))}"/>'
            )
    return "".join(parts)


def _level(box: _Box, level: Level) -> str:
    y = float(box.to_y(level.y))
    x = float(box.to_x(level.x)) if level.x is not None else float(_LEFT)
    parts = [f'<line class="level" x1="{x:.1f}" x2="{box.plot_right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    if level.x is not None:
        parts.append(
            f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{box.plot_bottom:.1f}"/>'
            f'<circle class="reached" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        )
    parts.append(
        f'<text class="level-label" x="{x + 8:.1f}" y="{box.plot_bottom - 9:.1f}">{escape(level.label)}</text>'
    )
    return "".join(parts)


def _path(box: _Box, x: Array, y: Array) -> str:
    """M and L commands; a missing value lifts the pen, a lone value between two gaps becomes a short dash."""
    commands: list[str] = []
    pen_down = False
    for px, py in zip(box.to_x(x), box.to_y(y), strict=True):
        if not math.isfinite(py):
            pen_down = False
            continue
        py = max(py, _TOP - 6.0)
        commands.append(f"{'L' if pen_down else 'M'}{px:.1f} {py:.1f}" + ("" if pen_down else "h.01"))
        pen_down = True
    return "".join(commands)


def _end_label(one: Series, named: bool) -> str:
    finite = one.y[np.isfinite(one.y)]
    value = number(float(finite[-1]), 3) if len(finite) else ""
    return f"{one.name} {value}" if named else value


def _labels(box: _Box, series: Sequence[Series], labels: dict[str, str]) -> str:
    """Each curve's last value beside its end; labels that would overlap are pushed apart."""
    placed: list[tuple[float, Series]] = []
    for one in series:
        finite = one.y[np.isfinite(one.y)]
        if len(finite):
            placed.append((float(box.to_y(finite[-1])), one))
    placed.sort(key=lambda item: item[0])
    parts, previous = [], -math.inf
    for y, one in placed:
        previous = max(y, previous + 13)
        x = float(box.to_x(one.x[np.isfinite(one.y)][-1]))
        parts.append(f'<circle class="end c{one.color}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')
        label = escape(labels[one.name])
        parts.append(
            f'<text class="value c{one.color}" x="{box.plot_right + 7:.1f}" y="{previous + 3.8:.1f}">{label}</text>'
        )
    return "".join(parts)
