"""The page's tables: mixture, held-out text, benchmarks, steps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jobs.analysis.comparison import savings
from jobs.show.report.bars import bar
from jobs.show.report.model import (
    CheckpointRow,
    ComparisonView,
    EvaluationRow,
    SourceCell,
    StageView,
    StepRow,
    SuiteCell,
    TaskCell,
)
from pipeline.quantities import MISSING, duration, fixed, number, percent, si

_KNOWN_STATES = {
    "done": ("done", "complete", "completed", "finished", "succeeded"),
    "running": ("running", "resumable"),
    "failed": ("failed", "refused", "error", "blocked", "crashed", "unreadable"),
    "waiting": ("waiting", "pending", "queued", "stopped", "stale"),
}


def status_pill(status: str) -> str:
    """A coloured dot and the status itself; the colour follows the first word."""
    word = status.split()[0].lower().rstrip(",:") if status.split() else ""
    kind = next((kind for kind, words in _KNOWN_STATES.items() if word in words), "other")
    return f'<span class="pill {kind}">{escape(status or "unknown")}</span>'


def mixture_table(stages: Sequence[StageView]) -> str:
    """Share of each source in each stage, as bars; the largest first."""
    shares = [
        {name: weight / (sum(stage.mixture.values()) or 1) for name, weight in stage.mixture.items()}
        for stage in stages
    ]
    sources = sorted(
        {name for share in shares for name in share}, key=lambda n: (-max(s.get(n, 0) for s in shares), n)
    )
    if not sources:
        return ""
    head = "".join(f'<th class="left">{escape(stage.name)}</th>' for stage in stages)
    rows = []
    for source in sources:
        cells = []
        for share in shares:
            value = share.get(source)
            if value is None:
                cells.append(
                    f'<td class="mixture"><div class="row">{bar(0.0)}<span>{MISSING}</span></div></td>'
                )
                continue
            cells.append(
                f'<td class="mixture"><div class="row">{bar(value)}<span>{percent(value)}</span></div></td>'
            )
        rows.append(f"<tr><th>{escape(source)}</th>{''.join(cells)}</tr>")
    return table(f"<tr><th>Source</th>{head}</tr>", rows)


def heldout_table(rows: Sequence[EvaluationRow]) -> str:
    """Bits per byte per source and of the mixture, and the health of the concepts."""
    sources = list(dict.fromkeys(source for row in rows for source in row.heldout))
    mixtures = [row.mixture_bits_per_byte for row in rows if row.mixture_bits_per_byte is not None]
    largest = max(mixtures, default=1.0)
    trained = [
        row.mixture_bits_per_byte
        for row in rows
        if not row.reference and row.mixture_bits_per_byte is not None
    ]
    best = min(trained, default=None)
    with_concepts = any(row.ncp_loss is not None or row.codebook_perplexity is not None for row in rows)
    head = "<th>Model</th><th>mixture<small>bits per byte</small></th>"
    head += "".join(f"<th>{escape(source)}<small>bits per byte</small></th>" for source in sources)
    if with_concepts:
        head += (
            "<th>NCP loss<small>per element</small></th><th>NCP R&#178;<small>against the mean</small></th>"
        )
        head += "<th>codebook<small>perplexity</small></th><th>codewords<small>used of all</small></th>"
    lines = []
    for row in rows:
        mixture = row.mixture_bits_per_byte
        shade = "" if mixture is None else bar(mixture / largest, "faint" if row.reference else "c0")
        emphasis = ' class="best"' if mixture is not None and mixture == best and not row.reference else ""
        name = f"<small>{escape(row.mixture)}</small>" if row.mixture else ""
        cells = f"<td><span{emphasis}>{fixed(mixture, 3)}</span>{shade}{name}</td>"
        cells += "".join(_source_cell(row.heldout.get(source)) for source in sources)
        if with_concepts:
            used = MISSING
            if row.codebook_used is not None and row.codebook_entries:
                used = f"{number(row.codebook_used, 3)} / {row.codebook_entries}"
            cells += f"<td>{number(row.ncp_loss, 3)}</td><td>{fixed(row.ncp_r2, 3)}</td>"
            cells += f"<td>{number(row.codebook_perplexity, 3)}</td><td>{used}</td>"
        kind = ' class="reference"' if row.reference else ""
        lines.append(f"<tr{kind}><th>{escape(row.label)}</th>{cells}</tr>")
    return table(f"<tr>{head}</tr>", lines)


def _source_cell(cell: SourceCell | None) -> str:
    if cell is None:
        return f"<td>{MISSING}</td>"
    interval = ""
    if cell.low is not None and cell.high is not None:
        interval = f"<small>[{fixed(cell.low, 3)}, {fixed(cell.high, 3)}]</small>"
    return f"<td>{fixed(cell.bits_per_byte, 3)}{interval}</td>"


def downstream_table(rows: Sequence[EvaluationRow]) -> str:
    """One line a benchmark, one pair of columns a checkpoint."""
    rows = [row for row in rows if row.tasks]
    labels = list(dict.fromkeys(label for row in rows for label in row.tasks))
    top = "".join(f'<th class="span" colspan="2">{escape(row.label)}</th>' for row in rows)
    head = (
        f'<tr><th rowspan="2">Benchmark</th><th rowspan="2">n</th><th rowspan="2">guessing</th>{top}</tr><tr>'
    )
    head += "<th>accuracy</th><th>bits per byte</th>" * len(rows) + "</tr>"
    lines = []
    for label in labels:
        known = [row.tasks[label] for row in rows if label in row.tasks]
        metric = known[-1].metric
        kind = (
            ""
            if metric in ("accuracy", "bits_per_byte")
            else f"<small>{escape(metric.replace('_', ' '))}</small>"
        )
        chance = next((cell.chance for cell in known if cell.chance is not None), None)
        cells = "".join(_task_cells(row.tasks.get(label)) for row in rows)
        counts = sorted({cell.questions for cell in known})
        count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        lines.append(
            f"<tr><th>{escape(label)}{kind}</th><td>{count}{_left_out(known)}</td>"
            f'<td class="soft">{percent(chance)}</td>{cells}</tr>'
        )
    return table(head, lines)


def _left_out(cells: Sequence[TaskCell]) -> str:
    """What the window took away, at its worst among the checkpoints."""
    counts = {
        "with fewer examples": max(cell.n_truncated for cell in cells),
        "skipped": max(cell.skipped for cell in cells),
    }
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"<small>{said}</small>" if said else ""


def _task_cells(cell: TaskCell | None) -> str:
    if cell is None:
        return f"<td>{MISSING}</td><td>{MISSING}</td>"
    accuracy = percent(cell.accuracy)
    if cell.accuracy is not None and cell.stderr is not None:
        accuracy += f' <span class="soft">&#177; {100 * cell.stderr:.1f}</span>'
        if cell.chance is not None and cell.accuracy - cell.chance > 2 * cell.stderr:
            accuracy = f'<span class="above">{accuracy}</span>'
    return f"<td>{accuracy}</td><td>{fixed(cell.bits_per_byte, 3)}</td>"


def comparison_table(comparisons: Sequence[ComparisonView]) -> str:
    """Tokens and compute to the baseline's final loss."""
    head = (
        "<tr><th>Run</th><th class='left'>against</th><th>loss to reach<small>nats per token</small></th>"
        "<th>tokens needed<small>of the baseline's</small></th><th>compute needed<small>of the baseline's</small></th>"
        "<th>final gap<small>nats per token</small></th></tr>"
    )
    lines = []
    for one in comparisons:
        cells = f'<td class="left">{escape(one.baseline)}</td><td>{fixed(one.target_loss, 4)}</td>'
        for ratio, interval in (
            (one.token_ratio, one.token_interval),
            (one.compute_ratio, one.compute_interval),
        ):
            upper = (
                "never" if interval and interval[1] is None else percent(interval[1] if interval else None)
            )
            between = f"<small>[{percent(interval[0])}, {upper}]</small>" if interval else ""
            speedup = f' <span class="soft">{savings(ratio)}</span>' if ratio else ""
            missing = "the same steps" if one.shared else "not reached"
            cells += f"<td>{percent(ratio) if ratio is not None else missing}{speedup}{between}</td>"
        note = f"<small>{escape(one.note)}</small>" if one.note else ""
        lines.append(f"<tr><th>{escape(one.candidate)}{note}</th>{cells}<td>{one.final_gap:+.4f}</td></tr>")
    return table(head, lines)


def steps_table(steps: Sequence[StepRow]) -> str:
    """The DAG's steps, with their durations as bars."""
    longest = max((step.seconds for step in steps if step.seconds is not None), default=0.0) or 1.0
    head = (
        "<tr><th>Step</th><th class='left'>State</th><th>Duration</th><th>Attempt</th>"
        "<th class='left'>Fingerprint</th><th class='left'>Note</th></tr>"
    )
    lines = []
    for step in steps:
        length = "" if step.seconds is None else bar(step.seconds / longest)
        attempt = MISSING if step.attempt is None else str(step.attempt)
        lines.append(
            f'<tr><th>{escape(step.name)}</th><td class="left">{status_pill(step.state)}</td>'
            f'<td class="time">{duration(step.seconds)}{length}</td><td>{attempt}</td>'
            f'<td class="left mono">{escape(step.fingerprint[:12])}</td><td class="left soft">{escape(step.note)}</td></tr>'
        )
    return table(head, lines)


def suites_table(rows: Sequence[EvaluationRow]) -> str:
    """The suites' averages: over families, each the average over its tasks."""
    rows = [row for row in rows if row.suites]
    suites = list(dict.fromkeys(name for row in rows for name in row.suites))
    head = "<tr><th>Average of averages</th>" + "".join(
        f"<th>{escape(name)}<small>score</small></th><th>{escape(name)}<small>bits per byte</small></th>"
        for name in suites
    )
    lines = []
    for row in rows:
        cells = ""
        for name in suites:
            cell = row.suites.get(name, SuiteCell(score=None))
            cells += f"<td>{_with_error(percent(cell.score), cell.score_stderr, 100, 1)}</td>"
            cells += f"<td>{_with_error(fixed(cell.bits_per_byte, 3), cell.bits_per_byte_stderr, 1, 3)}</td>"
        lines.append(f"<tr><th>{escape(row.label)}</th>{cells}</tr>")
    return table(head + "</tr>", lines)


def _with_error(text: str, stderr: float | None, scale: float, decimals: int) -> str:
    return (
        text if stderr is None else f'{text} <span class="soft">&#177; {scale * stderr:.{decimals}f}</span>'
    )


def checkpoints_table(checkpoints: Sequence[CheckpointRow]) -> str:
    """Milestones, the newest first."""
    head = (
        "<tr><th>Stage</th><th>Step</th><th>Tokens<small>of the run</small></th><th>Size</th><th>Attempt</th>"
        "<th class='left'>Complete at</th><th class='left'>Note</th></tr>"
    )
    lines = [
        f"<tr><th>{escape(one.stage)}</th><td>{one.step:,}</td><td>{si(one.tokens_total)}</td>"
        f"<td>{MISSING if one.size is None else f'{si(one.size)}B'}</td>"
        f"<td>{MISSING if one.attempt is None else one.attempt}</td>"
        f'<td class="left">{escape(one.at)}</td><td class="left soft">{escape(one.note)}</td></tr>'
        for one in checkpoints
    ]
    return table(head, lines)


def table(head: str, rows: Sequence[str]) -> str:
    return (
        f'<div class="panel scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    )
