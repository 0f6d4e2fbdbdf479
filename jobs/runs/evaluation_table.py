"""The closing table: untrained, unigram, each stage, each stage with its concept zeroed - side by side.

An evaluation holds results per source; what they mean for a mixture is computed here, by the stage's own weights, so
that a changed mixture never asks for a new evaluation of an old checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.runs.mixture import mixture_average
from jobs.runs.recorded import reading
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One line: bits per byte by source and by stage mixture; None where it was not measured."""

    label: str
    reference: bool
    """A baseline or an ablation, not a checkpoint as it is."""
    stage: str | None
    """The stage whose milestone was evaluated; None for what belongs to no stage."""
    step: int
    """The milestone."""
    kind: str
    """Which of an evaluation's measures: `model`, `zero_concept` or `unigram`."""
    sources: Mapping[str, float | None]
    mixtures: Mapping[str, float | None]
    result: Mapping[str, Any]
    """The whole evaluation this row is read from."""


def evaluation_rows(
    storage: Storage, record: Mapping[str, Any], *, on_damage: Callable[[str], None] = lambda why: None
) -> list[TableRow]:
    """Rows of a run's table, from the evaluations that exist so far. One that cannot be read is left out: status names it, and
    `on_damage` is told why."""
    rows: list[TableRow] = []
    for step in record["steps"]:
        if step["kind"] == "evaluation":
            try:
                with reading(step["key"]):
                    rows += step_rows(storage, record, step)
            except DamagedRecord as error:
                on_damage(str(error))
    return rows


def step_rows(storage: Storage, record: Mapping[str, Any], step: Mapping[str, Any]) -> list[TableRow]:
    """Rows of one evaluation of a run: none while it is not done."""
    receipt = StepStore(storage, step["key"]).receipt()
    if receipt is None:
        return []
    result, stages = receipt["result"], record["recipe"]["stages"]
    if receipt["step"] == 0:
        rows = [_row("untrained", None, 0, "model", result, stages)]
        rows.append(_row("unigram", None, 0, "unigram", result, stages))
    else:
        stage = receipt["stage"]
        stop = next(step["milestone"] for step in record["steps"] if step["name"] == stage)
        label = stage if receipt["step"] == stop else f"{stage} at step {receipt['step']:,}"
        rows = [_row(label, stage, receipt["step"], "model", result, stages)]
        if receipt["step"] == stop:
            rows.append(
                _row(f"{stage}, concept zeroed", stage, receipt["step"], "zero_concept", result, stages)
            )
    return [row for row in rows if any(value is not None for value in row.sources.values()) or _answered(row)]


def _answered(row: TableRow) -> bool:
    """Whether the row stands for a model that benchmarks were asked of, held-out text or not."""
    return row.kind == "model" and bool(row.result["tasks"])


def _row(
    label: str,
    stage: str | None,
    step: int,
    kind: str,
    result: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, Any]],
) -> TableRow:
    def bits(measured: Mapping[str, Any] | None) -> float | None:
        return measured[kind]["bits_per_byte"] if measured and measured[kind] else None

    return TableRow(
        label=label,
        reference=kind != "model",
        stage=stage,
        step=step,
        kind=kind,
        sources={source: bits(values) for source, values in result["heldout"].items()},
        mixtures={
            name: bits(mixture_average(result["heldout"], config["mixture"]))
            for name, config in stages.items()
        },
        result=result,
    )
