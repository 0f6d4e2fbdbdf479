"""Comparing stored runs, one a side or one a seed and side: loss at equal tokens and compute, and evaluations.

Each stage is compared by itself, over its own tokens: the public 51.3 % and 66.2 % are of Stage-1 and Stage-2. The
baseline's loss at its end is the target (`jobs.analysis.comparison`). Evaluations are paired by seed; an average of a
suite is one over families, each of its tasks, so that MMLU's fifty-seven subjects count once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from curriculum.identity import difference
from curriculum.load import plain
from curriculum.schema import StageSpec
from curriculum.tokens import horizon_steps, stage_steps
from jobs.analysis.comparison import (
    MIN_WINDOW_STEPS,
    WINDOW,
    ComparisonError,
    LossCurve,
    MatchSummary,
    compare,
    mean_interval,
    pair_by_seed,
)
from jobs.analysis.run_curves import stage_curve, step_record
from jobs.evaluation.suites import suite_stderr
from jobs.runs.evaluation_table import evaluation_rows
from jobs.runs.record import read_run
from jobs.runs.recorded import recorded_recipe
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class StageComparison:
    """One stage of both sides."""

    stage: str
    summary: MatchSummary
    pairs: tuple[tuple[LossCurve, LossCurve], ...]
    """(baseline, candidate) of each seed, in the order of `summary.matches`."""
    notes: tuple[str, ...]
    """What a reader must know before quoting a number."""
    shared: bool = False
    """Every pair is one and the same trajectory: nothing is compared, and nothing saved."""


@dataclass(frozen=True, kw_only=True)
class AverageComparison:
    """One evaluated number of both sides."""

    stage: str
    what: str
    """`held-out`, or the name of a suite."""
    measure: str
    """`bits_per_byte` (lower is better) or `score` (higher is better)."""
    baseline: float
    """Mean over seeds."""
    candidate: float
    difference: float
    """Candidate minus baseline."""
    interval: tuple[float, float] | None
    """95 % interval of the difference."""
    interval_over: str
    """`seeds` or, of one pair of runs, `questions`."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Everything `ncp compare` says."""

    baselines: tuple[str, ...]
    candidates: tuple[str, ...]
    metric: str
    window: float
    stages: tuple[StageComparison, ...]
    averages: tuple[AverageComparison, ...]
    notes: tuple[str, ...]

    @property
    def smoothing(self) -> str:
        """In words, for whoever quotes a number."""
        if not self.window:
            return "no smoothing"
        return (
            f"local straight line over {100 * self.window:g} % of the baseline's tokens, at least {MIN_WINDOW_STEPS} steps, "
            "on both curves"
        )

    def record(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "baselines": list(self.baselines),
            "candidates": list(self.candidates),
            "metric": self.metric,
            "smoothing": {"window": self.window, "words": self.smoothing},
            "stages": {one.stage: _stage_record(one) for one in self.stages},
            "averages": [asdict(one) for one in self.averages],
            "notes": list(self.notes),
        }


def compare_runs(
    storage: Storage,
    baselines: Sequence[str],
    candidates: Sequence[str],
    *,
    stages: Sequence[str] = (),
    metric: str = "ntp",
    window: float = WINDOW,
    force: bool = False,
) -> RunComparison:
    """Compare `candidates` with `baselines`, paired by the seed of each stage; `stages` defaults to all that both have.

    Raises ComparisonError for runs that cannot be compared, RecipeError for an unknown one.
    """
    if not 0 <= window <= 1:
        raise ComparisonError(
            f"compare: --smoothing {window} is not a share; use 0 (none) to 1, such as 0.02"
        )
    notes: list[str] = []
    chosen = list(stages) or _common_stages(storage, [*baselines, *candidates])
    compared = []
    for stage in chosen:
        try:
            sides = [
                [stage_curve(storage, run, stage, metric) for run in side] for side in (baselines, candidates)
            ]
        except ComparisonError as error:
            if stages or stage == chosen[0]:
                raise
            notes.append(f"{stage} is left out: {str(error).removeprefix('compare: ')}")
            continue
        pairs = tuple(pair_by_seed(sides[0], sides[1]))
        if not force:
            _refuse_other_schedules(storage, stage, pairs)
        same = [_same_steps(storage, stage, pair) for pair in pairs]
        summary = compare(sides[0], sides[1], window=window, force=force)
        if all(same):
            summary = _nothing_saved(summary)
        notes_of_stage = _notes(storage, stage, pairs, summary, same)
        compared.append(
            StageComparison(stage=stage, summary=summary, pairs=pairs, notes=notes_of_stage, shared=all(same))
        )
    averages, skipped = _averages(storage, compared, force)
    return RunComparison(
        baselines=tuple(baselines),
        candidates=tuple(candidates),
        metric=metric,
        window=window,
        stages=tuple(compared),
        averages=averages,
        notes=(*notes, *skipped),
    )


def _common_stages(storage: Storage, runs: Sequence[str]) -> list[str]:
    names = [list(read_run(storage, run)["recipe"]["stages"]) for run in runs]
    common = [name for name in names[0] if all(name in other for other in names)]
    if not common:
        raise ComparisonError(f"compare: {', '.join(runs)} have no stage in common; name one with --stage")
    return common


def _spec(storage: Storage, curve: LossCurve, stage: str) -> StageSpec:
    return recorded_recipe(read_run(storage, curve.run)).stages[stage]


def _same_steps(storage: Storage, stage: str, pair: tuple[LossCurve, LossCurve]) -> bool:
    """Whether both runs name one trajectory, so that they have the very same steps."""
    keys = {step_record(read_run(storage, curve.run), stage)["key"] for curve in pair}
    return len(keys) == 1


def _nothing_saved(summary: MatchSummary) -> MatchSummary:
    """Of a run against itself: gaps are zero, and there is no ratio to quote."""
    return replace(
        summary,
        token_ratio=None,
        token_ratio_interval=None,
        compute_ratio=None,
        compute_ratio_interval=None,
        unmatched=0,
        matches=tuple(
            replace(
                match,
                tokens=None,
                token_ratio=None,
                token_ratio_interval=None,
                compute_ratio=None,
                compute_ratio_interval=None,
            )
            for match in summary.matches
        ),
    )


def _refuse_other_schedules(
    storage: Storage, stage: str, pairs: Sequence[tuple[LossCurve, LossCurve]]
) -> None:
    """A loss at equal tokens says nothing of the models where the learning rate has fallen further in one of them."""
    for baseline, candidate in pairs:
        specs = [_spec(storage, curve, stage) for curve in (baseline, candidate)]
        horizons = [horizon_steps(spec) * spec.global_batch_tokens for spec in specs]
        # A batch of another size ends its last step elsewhere; less than one batch is the same horizon.
        if abs(horizons[0] - horizons[1]) >= max(spec.global_batch_tokens for spec in specs):
            raise ComparisonError(
                f"compare: the schedule of {stage} ends at {horizons[0]:,} tokens in {baseline.run} and at {horizons[1]:,} "
                f"in {candidate.run}, so their learning rates differ at equal tokens; train both to one horizon, or pass "
                "--force and say so"
            )


def _notes(
    storage: Storage,
    stage: str,
    pairs: Sequence[tuple[LossCurve, LossCurve]],
    summary: MatchSummary,
    same: Sequence[bool],
) -> tuple[str, ...]:
    notes = []
    for pair, shared in zip(pairs, same, strict=True):
        if shared:
            notes.append(
                f"{stage} of {pair[0].run} and {pair[1].run} is one trajectory: the same steps, nothing to compare"
            )
            continue
        for curve in pair:
            spec = _spec(storage, curve, stage)
            budget = stage_steps(spec) * spec.global_batch_tokens
            if curve.tokens[-1] < budget:
                share = 100 * float(curve.tokens[-1]) / budget
                notes.append(f"{curve.run} has {share:.0f} % of its {stage}: the figures are of that part")
            missing = int(np.count_nonzero(~np.isfinite(curve.loss)))
            if missing:
                last = ", the last ones among them" if not math.isfinite(curve.loss[-1]) else ""
                notes.append(f"{curve.run} has no loss at {missing:,} of {len(curve.loss):,} steps{last}")
        if pair[0].order != pair[1].order:
            notes.append(f"{pair[0].run} and {pair[1].run} read different data orders (forced)")
        own = [plain(_spec(storage, curve, stage)) for curve in pair]
        for name in ("global_batch_tokens", "schedule", "optimizer", "horizon_tokens"):
            for path, ours, theirs in difference({name: own[0][name]}, {name: own[1][name]}):
                notes.append(f"{path} differs: {ours} in {pair[0].run}, {theirs} in {pair[1].run}")
    floors = [match.noise_floor for match, shared in zip(summary.matches, same, strict=True) if not shared]
    known = [floor for floor in floors if floor is not None]
    if known:
        notes.append(
            f"noise floor: the baseline trained once more could seem to need {100 * max(known):.1f} % fewer tokens than itself"
        )
    if not all(same) and summary.token_ratio is not None and summary.token_ratio_interval is None:
        notes.append("no interval: too few steps, or a seed that never reached the loss")
    return tuple(dict.fromkeys(notes))


def _averages(
    storage: Storage, compared: Sequence[StageComparison], force: bool
) -> tuple[tuple[AverageComparison, ...], list[str]]:
    """Held-out text and suites of the checkpoints at the stages' ends, where both sides answered the same questions."""
    found: list[AverageComparison] = []
    skipped: list[str] = []
    for one in compared:
        paired = [
            (_evaluation(storage, a.run, one.stage, skipped), _evaluation(storage, b.run, one.stage, skipped))
            for a, b in one.pairs
        ]
        known = [(a, b) for a, b in paired if a is not None and b is not None]
        if not known:
            continue
        if not force and any(_asked(a) != _asked(b) for a, b in known):
            skipped.append(
                f"evaluations of {one.stage} are left out: they asked different questions or documents (--force shows them)"
            )
            continue
        measures = [("held-out", "bits_per_byte")]
        measures += [(suite, kind) for suite in known[0][0]["suites"] for kind in ("score", "bits_per_byte")]
        for what, measure in measures:
            average = _average(one.stage, what, measure, known)
            if average is not None:
                found.append(average)
    return tuple(found), list(dict.fromkeys(skipped))


def _evaluation(storage: Storage, run: str, stage: str, left_out: list[str]) -> dict[str, Any] | None:
    """The result on the stage's last checkpoint, with `mixture`: bits per byte under the stage's own weights.

    What cannot be read is added to `left_out`.
    """
    for row in evaluation_rows(
        storage, read_run(storage, run), on_damage=lambda why: left_out.append(f"left out: {why}")
    ):
        if row.stage == stage and row.kind == "model":
            return {**row.result, "mixture": row.mixtures.get(stage)}
    return None


def _asked(result: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the questions and the documents."""
    return {
        "documents": {source: values["documents_sha256"] for source, values in result["heldout"].items()},
        "requests": {label: task.get("requests_sha256") for label, task in result["tasks"].items()},
        "limit": result["limit"],
    }


def _average(
    stage: str, what: str, measure: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> AverageComparison | None:
    def value(result: Mapping[str, Any]) -> float | None:
        return result["mixture"] if what == "held-out" else result["suites"].get(what, {}).get(measure)

    values = [(value(a), value(b)) for a, b in pairs]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if not known:
        return None
    differences = [b - a for a, b in known]
    interval, over = mean_interval(differences), "seeds"
    if interval is None and what != "held-out":
        errors = [suite_stderr(what, result["tasks"], measure) for result in pairs[0]]
        if errors[0] is not None and errors[1] is not None:
            half = 1.96 * math.hypot(errors[0], errors[1])
            interval, over = (differences[0] - half, differences[0] + half), "questions"
    return AverageComparison(
        stage=stage,
        what=what,
        measure=measure,
        baseline=math.fsum(a for a, _ in known) / len(known),
        candidate=math.fsum(b for _, b in known) / len(known),
        difference=math.fsum(differences) / len(differences),
        interval=interval,
        interval_over=over,
    )


def _stage_record(one: StageComparison) -> dict[str, Any]:
    summary = one.summary
    return {
        "token_ratio": summary.token_ratio,
        "token_ratio_interval": summary.token_ratio_interval,
        "interval_over": summary.interval_over,
        "shared": one.shared,
        "token_speedup": None if summary.token_ratio is None else 1 / summary.token_ratio,
        "compute_ratio": summary.compute_ratio,
        "compute_ratio_interval": summary.compute_ratio_interval,
        "compute_speedup": None if summary.compute_ratio is None else 1 / summary.compute_ratio,
        "unmatched": summary.unmatched,
        "pairs": [
            {
                "seed": candidate.seed,
                "baseline": baseline.run,
                "candidate": candidate.run,
                "same_order": baseline.order == candidate.order,
                "baseline_tokens": float(baseline.tokens[-1]),
                "flops_per_token": [baseline.flops_per_token, candidate.flops_per_token],
                **asdict(match),
            }
            for (baseline, candidate), match in zip(one.pairs, summary.matches, strict=True)
        ],
        "notes": list(one.notes),
    }
