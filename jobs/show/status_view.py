"""Status for a terminal: one line a run, or everything about one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.runs.overview import EvaluationStatus, RunOverview, StageStatus
from jobs.runs.run_alerts import RunAlert
from jobs.runs.status import StepStatus
from pipeline.quantities import duration, utc_text

BAR_WIDTH = 60
_LEAST = 6
"""Columns of the shortest stage in the bar."""
_COLORS = {
    "done": "green",
    "running": "blue",
    "failed": "bold red",
    "stopped": "yellow",
    "unreadable": "bold red",
}
_METRICS = (("ntp", "NTP"), ("ncp", "NCP"), ("vq", "VQ"), ("lr", "LR"), ("grad_norm", "grad norm"))


def print_run_list(out: Console, overviews: Sequence[RunOverview]) -> None:
    """One line a run."""
    if not overviews:
        out.print("no runs yet; start one with: ncp run demo")
        return
    table = Table(box=None, pad_edge=False)
    for header in ("run", "state", "steps", "tokens", "loss", "tokens/s", "ETA", "now"):
        left = header in ("run", "state", "now")
        table.add_column(
            header, justify="left" if left else "right", no_wrap=header == "run", overflow="fold"
        )
    for overview in overviews:
        status = overview.status
        over = sum(step.state == "done" for step in status.steps)
        table.add_row(
            status.run,
            _state(status.state),
            f"{over}/{len(status.steps)}",
            _share(overview.tokens_done, overview.tokens_budget),
            _latest_loss(overview),
            "-" if overview.rate is None else f"{overview.rate:,.0f}",
            duration(overview.eta_seconds),
            escape(status.problem)
            or ", ".join(step.name for step in status.steps if step.state in ("running", "failed"))
            or "-",
        )
    out.print(table)


def print_run(out: Console, overview: RunOverview) -> None:
    """The whole state of one run."""
    status = overview.status
    over = sum(step.state == "done" for step in status.steps)
    created = utc_text(status.created)
    out.print(
        f"[bold]{status.run}[/bold]  {_state(status.state)}  recipe {escape(status.recipe)}, created {created}, "
        f"{over}/{len(status.steps)} steps done"
    )
    for alert in overview.alerts:
        out.print(_alert_line(alert), style={"error": "red", "warning": "yellow"}.get(alert.severity, ""), markup=False)  # fmt: skip
    if overview.stages:
        out.print()
        _print_curriculum(out, overview)
    out.print()
    _print_steps(out, status.steps)
    if overview.evaluations:
        out.print()
        _print_evaluations(out, overview.evaluations)


def curriculum_bar(stages: Sequence[StageStatus], width: int = BAR_WIDTH) -> str:
    """`[####|##..|....]`: each stage as wide as its budget, filled as far as it is done."""
    total = sum(stage.tokens_budget for stage in stages) or 1
    cells = []
    for stage in stages:
        columns = max(_LEAST, round(width * stage.tokens_budget / total))
        filled = columns * stage.tokens_done // max(stage.tokens_budget, 1)
        cells.append("#" * filled + "." * (columns - filled))
    return f"[{'|'.join(cells)}]"


def _print_curriculum(out: Console, overview: RunOverview) -> None:
    left = f"  ETA {duration(overview.eta_seconds)}" if overview.eta_seconds is not None else ""
    out.print(
        f"{curriculum_bar(overview.stages)}  {_share(overview.tokens_done, overview.tokens_budget)}{left}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for header in ("stage", "state", "tokens", "", "steps", "tokens/s", "ETA", *(t for _, t in _METRICS), "restarts"):  # fmt: skip
        table.add_column(header, justify="left" if header in ("stage", "state") else "right", no_wrap=True)
    for stage in overview.stages:
        table.add_row(
            stage.name,
            _state(stage.state),
            f"{stage.tokens_done:,}/{stage.tokens_budget:,}",
            f"{100 * stage.tokens_done / max(stage.tokens_budget, 1):.0f} %",
            f"{stage.steps_done:,}/{stage.steps:,}",
            "-" if stage.rate is None else f"{stage.rate:,.0f}",
            duration(stage.eta_seconds),
            *(_number(stage.metrics.get(name)) for name, _ in _METRICS),
            str(stage.restarts),
        )
    out.print(table)


def _print_steps(out: Console, steps: Sequence[StepStatus]) -> None:
    table = Table(box=None, pad_edge=False)
    for header in ("step", "state", "needs", "took", "attempt", ""):
        table.add_column(header, overflow="fold", no_wrap=header in ("step", "state", "took"))
    for step in steps:
        table.add_row(
            step.name,
            _state(step.state),
            _needs(step.needs),
            duration(step.seconds),
            "-" if step.attempt is None else str(step.attempt),
            escape(step.detail),
        )
    out.print(table)


def _print_evaluations(out: Console, evaluations: Sequence[EvaluationStatus]) -> None:
    mixtures = list(dict.fromkeys(name for one in evaluations for name in one.bits_per_byte))
    suites = list(dict.fromkeys(name for one in evaluations for name in one.suites))
    table = Table(box=None, pad_edge=False)
    table.add_column("evaluation", no_wrap=True)
    table.add_column("step", justify="right")
    for name in mixtures:
        table.add_column(f"{name} mixture, bits/byte", justify="right")
    for name in suites:
        table.add_column(f"{name}, score", justify="right")
        table.add_column(f"{name}, bits/byte", justify="right")
    for one in evaluations:
        averages = [
            one.suites.get(name, {}).get(kind) for name in suites for kind in ("score", "bits_per_byte")
        ]
        values = [*(one.bits_per_byte.get(name) for name in mixtures), *averages]
        table.add_row(one.name, f"{one.step:,}", *(_number(value) for value in values))
    out.print(table)


def _alert_line(alert: RunAlert) -> str:
    where = f" at step {alert.step:,}" if alert.step is not None else ""
    return f"  {alert.severity}: {alert.name}{where}: {alert.message}"


def _latest_loss(overview: RunOverview) -> str:
    values = [stage.metrics.get("ntp") for stage in overview.stages if stage.metrics]
    return _number(values[-1] if values else None)


def _share(done: int, budget: int) -> str:
    return f"{done:,}/{budget:,} {100 * done / budget:.0f} %" if budget else "-"


def _needs(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _state(state: str) -> str:
    color = _COLORS.get(state)
    return f"[{color}]{state}[/{color}]" if color else state
