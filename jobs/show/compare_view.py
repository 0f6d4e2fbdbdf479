"""A comparison for a terminal, and as parts of a report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from jobs.analysis.comparison import ComparisonError, local_line, savings, smoothing_width
from jobs.analysis.run_compare import RunComparison, StageComparison, compare_runs
from jobs.show.report.model import ComparisonView, MatchChart
from pipeline.storage import Storage

_BETTER = {"score": "higher is better", "bits_per_byte": "lower is better"}


def print_comparison(out: Console, found: RunComparison, by: str) -> None:
    """The tables: the ratio asked for (`tokens` or `flops`) first."""
    out.print(f"baseline   {', '.join(found.baselines)}", markup=False)
    out.print(f"candidate  {', '.join(found.candidates)}", markup=False)
    out.print(f"{found.metric}, smoothed: {found.smoothing}\n", markup=False)
    table = Table(box=None, pad_edge=False)
    shown = ("tokens", "flops") if by == "tokens" else ("flops", "tokens")
    titles = {"tokens": "tokens to match", "flops": "compute to match"}
    for header in (
        "stage",
        "loss to reach",
        *(titles[name] for name in shown),
        f"gap at equal {by}",
        "seeds",
    ):
        table.add_column(header, justify="left" if header == "stage" else "right", no_wrap=True)
    for one in found.stages:
        matches = one.summary.matches
        target = sum(match.target_loss for match in matches) / len(matches)
        gaps = [match.final_gap if by == "tokens" else match.compute_gap for match in matches]
        table.add_row(
            one.stage,
            f"{target:.4f}",
            *(_ratio(one, name) for name in shown),
            f"{sum(gaps) / len(gaps):+.4f}",
            str(len(matches)),
        )
    out.print(table)
    if found.averages:
        out.print()
        _print_averages(out, found)
    for note in (*(note for one in found.stages for note in one.notes), *found.notes):
        out.print(f"note: {note}", markup=False)


def comparison_views(found: RunComparison, by: str = "tokens") -> list[ComparisonView]:
    """One row and one chart a stage for the report."""
    views = []
    for one in found.stages:
        summary = one.summary
        notes = [f"{found.metric}, {found.smoothing}", *one.notes]
        views.append(
            ComparisonView(
                baseline=", ".join(found.baselines),
                candidate=f"{', '.join(found.candidates)} / {one.stage}",
                target_loss=sum(match.target_loss for match in summary.matches) / len(summary.matches),
                token_ratio=summary.token_ratio,
                token_interval=summary.token_ratio_interval,
                compute_ratio=summary.compute_ratio,
                compute_interval=summary.compute_ratio_interval,
                final_gap=sum(match.final_gap for match in summary.matches) / len(summary.matches),
                shared=one.shared,
                note="; ".join(notes),
                chart=_chart(found, one, by),
            )
        )
    return views


def first_against_others(storage: Storage, runs: Sequence[str]) -> tuple[list[ComparisonView], list[str]]:
    """The first of `runs` as the baseline of each other; what cannot be compared becomes a sentence that says why."""
    views: list[ComparisonView] = []
    notes: list[str] = []
    for run in runs[1:]:
        try:
            found = compare_runs(storage, [runs[0]], [run])
        except ComparisonError as error:
            notes.append(f"Not compared: {str(error).removeprefix('compare: ')}.")
            continue
        views += comparison_views(found)
        notes += found.notes
    return views, notes


def _chart(found: RunComparison, one: StageComparison, by: str) -> MatchChart:
    """The first seed's smoothed curves, with the loss to reach and where it is reached."""
    (baseline, candidate), match = one.pairs[0], one.summary.matches[0]
    width = smoothing_width(baseline.tokens, candidate.tokens, found.window)
    costs = [curve.flops_per_token if by == "flops" else 1.0 for curve in (baseline, candidate)]
    smoothed = [local_line(curve.tokens, curve.loss, width) for curve in (baseline, candidate)]
    return MatchChart(
        title=f"{one.stage}: {found.metric} of {candidate.run} against {baseline.run}",
        axis=by,
        names=(baseline.run, candidate.run),
        x=(np.asarray(baseline.tokens) * costs[0], np.asarray(candidate.tokens) * costs[1]),
        y=(smoothed[0], smoothed[1]),
        target=match.target_loss,
        reached=None if match.tokens is None else match.tokens * costs[1],
    )


def _print_averages(out: Console, found: RunComparison) -> None:
    table = Table(box=None, pad_edge=False)
    for header in ("evaluation", "", "baseline", "candidate", "difference", "95 % interval"):
        table.add_column(header, justify="left" if header in ("evaluation", "") else "right", no_wrap=True)
    for one in found.averages:
        interval = (
            "-" if one.interval is None
            else f"{one.interval[0]:+.4f} to {one.interval[1]:+.4f} over {one.interval_over}"
        )  # fmt: skip
        table.add_row(
            f"{one.stage}, {one.what}",
            f"{one.measure.replace('_', ' ')} ({_BETTER[one.measure]})",
            f"{one.baseline:.4f}",
            f"{one.candidate:.4f}",
            f"{one.difference:+.4f}",
            interval,
        )
    out.print(table)


def _ratio(one: StageComparison, name: str) -> str:
    summary = one.summary
    ratio, interval = (
        (summary.token_ratio, summary.token_ratio_interval)
        if name == "tokens"
        else (summary.compute_ratio, summary.compute_ratio_interval)
    )
    if one.shared:
        return "the same steps"
    if ratio is None:
        return "not reached"
    text = f"{100 * ratio:.1f} % ({savings(ratio)})"
    if interval is not None:
        upper = "never" if interval[1] is None else f"{100 * interval[1]:.1f}"
        text += f" [{100 * interval[0]:.1f}, {upper}]"
    return f"{text}, {summary.unmatched} never" if summary.unmatched else text
