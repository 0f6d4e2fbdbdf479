"""The list of runs as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from jobs.runs.overview import RunOverview
from jobs.show.report.bars import bar
from jobs.show.report.tables import status_pill, table
from pipeline.quantities import MISSING, duration, number, percent, si, utc_text

_HEAD = (
    "<tr><th></th><th class='left'>Run</th><th class='left'>State</th><th class='rare'>Steps</th><th>Tokens</th><th>Loss</th>"
    "<th>tokens/s</th><th>ETA</th><th class='left'>Now</th><th class='left rare'>Created</th></tr>"
)


def run_table(overviews: Sequence[RunOverview]) -> str:
    """Runs in the order given, each with a box to choose it for a comparison."""
    heading = '<div class="title"><h1>Runs</h1></div>'
    if not overviews:
        return f'{heading}<p class="lead">No runs yet; start one with <span class="mono">ncp run demo</span>.</p>'
    rows = table(_HEAD, [_row(overview) for overview in overviews])
    button = '<p class="gap"><button>Compare the chosen runs</button></p>' if len(overviews) > 1 else ""
    return f'{heading}<form class="pick gap" action="/compare" method="get">{rows}{button}</form>'


def _row(overview: RunOverview) -> str:
    status = overview.status
    name = escape(status.run, quote=True)
    over = sum(step.state == "done" for step in status.steps)
    share = overview.tokens_done / overview.tokens_budget if overview.tokens_budget else 0.0
    losses = [stage.metrics["ntp"] for stage in overview.stages if stage.metrics.get("ntp") is not None]
    now = [step.name for step in status.steps if step.state in ("running", "failed")]
    alerts = [alert for alert in overview.alerts if alert.severity != "info"]
    warned = f"<small>{len(alerts)} alert{'s' if len(alerts) > 1 else ''}</small>" if alerts else ""
    cells = [
        f'<th><input type="checkbox" name="run" value="{name}" aria-label="choose {name}"></th>',
        f'<td class="left"><a href="/runs/{quote(status.run)}"><b>{name}</b></a><small>{escape(status.recipe)}</small></td>',
        f'<td class="left">{status_pill(status.state)}{warned}</td>',
        f'<td class="rare">{over} / {len(status.steps)}</td>',
        f"<td>{si(overview.tokens_done)} <span class='soft'>of {si(overview.tokens_budget)}, {percent(share, 0)}</span>{bar(share)}</td>",
        f"<td>{number(losses[-1] if losses else None, 4)}</td>",
        f"<td>{MISSING if overview.rate is None else f'{overview.rate:,.0f}'}</td>",
        f"<td>{duration(overview.eta_seconds)}</td>",
        f'<td class="left">{escape(status.problem or ", ".join(now)) or MISSING}</td>',
        f'<td class="left soft rare">{utc_text(status.created)}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"
