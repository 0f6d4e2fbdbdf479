"""Bars: a share of something, and the curriculum's timeline. SVG, so that no element needs a style of its own.

A page with a strict content security policy applies no style attributes; the widths here are SVG attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jobs.show.report.model import StageView

_LABEL_FROM = 0.1
"""Share of the timeline below which a stage is drawn without its name."""
_FILLS = {"done": "done", "failed": "failed", "stopped": "waiting"}


def bar(share: float, color: str = "c0") -> str:
    """A bar filled to `share`; `color` is c0 to c7 or faint."""
    width = 100 * min(max(share, 0.0), 1.0)
    return f'<svg class="bar" aria-hidden="true"><rect class="{color}" width="{width:.2f}%" height="100%"/></svg>'


def timeline(stages: Sequence[StageView]) -> str:
    """All stages in one bar, each as wide as its token budget and filled as far as it is done."""
    total = sum(stage.tokens_budget for stage in stages) or 1
    parts, left = [], 0.0
    for index, stage in enumerate(stages):
        width = 100 * stage.tokens_budget / total
        done = width * min(1.0, stage.tokens_done / stage.tokens_budget) if stage.tokens_budget else 0.0
        kind = _FILLS.get(stage.status.split()[0] if stage.status else "", "running")
        parts.append(f'<rect class="track" x="{left:.3f}%" width="{width:.3f}%" height="100%"/>')
        parts.append(f'<rect class="fill {kind}" x="{left:.3f}%" width="{done:.3f}%" height="100%"/>')
        if index:
            parts.append(f'<line class="cut" x1="{left:.3f}%" x2="{left:.3f}%" y1="0" y2="100%"/>')
        if width >= 100 * _LABEL_FROM:
            on = ' class="on"' if done >= 100 * _LABEL_FROM else ""
            parts.append(f'<text{on} x="{left:.3f}%" y="19.5" dx="10">{escape(stage.name)}</text>')
        left += width
    return f'<svg class="timeline" role="img" aria-label="tokens done of each stage">{"".join(parts)}</svg>'
