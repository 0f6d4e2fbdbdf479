"""What a report shows. Plain values only: whoever fills these reads storage, and the page only draws them.

None and NaN mean "not known" everywhere and are drawn as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One stage of the curriculum."""

    name: str
    status: str
    """done, running, waiting, failed, ..."""
    tokens_done: int
    tokens_budget: int
    steps_done: int
    steps: int
    first_token: int
    """Cumulative tokens where the stage begins: the x axis of the curves."""
    mixture: Mapping[str, float]
    """Source -> weight; need not sum to one."""
    note: str = ""
    """Anything short worth saying: 'from stage1, weights+optimizer'."""
    now: str = ""
    """Where it is, in words: 'loss 4.21, 8,912 tokens/s, ETA 0:46'."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What a reader compares between runs: sequence length, batch, learning rate, ..."""

    @property
    def last_token(self) -> int:
        """Cumulative tokens where the stage's budget ends."""
        return self.first_token + self.tokens_budget


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One measured quantity over cumulative tokens."""

    key: str
    """Curves of several runs with equal keys share a chart: ntp, ncp, vq, lr, grad_norm, tokens_per_second."""
    title: str
    x: Values
    """Cumulative tokens, ascending; same length as `y`."""
    y: Values
    flops: Values | None = None
    """Cumulative training FLOPs at the same points; None where they are not known."""
    unit: str = ""
    smooth: bool = True
    """Noisy, so a moving mean is drawn over it; False for what is exact, such as the learning rate."""
    log: bool = False
    """Logarithmic y axis; values that are not positive are then missing."""


@dataclass(frozen=True, kw_only=True)
class SourceCell:
    """Held-out result on one source."""

    bits_per_byte: float | None
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class TaskCell:
    """Result on one benchmark."""

    questions: int
    accuracy: float | None = None
    stderr: float | None = None
    chance: float | None = None
    bits_per_byte: float | None = None
    metric: str = "accuracy"
    """Which accuracy: accuracy, accuracy_per_char, exact_match, ..."""
    n_truncated: int = 0
    """Questions among them that were asked with fewer worked examples than the task has."""
    skipped: int = 0
    """Questions that were not asked: longer than the window."""


@dataclass(frozen=True, kw_only=True)
class SuiteCell:
    """Averages of one suite: over families, each the average over its tasks."""

    score: float | None
    score_stderr: float | None = None
    bits_per_byte: float | None = None
    bits_per_byte_stderr: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """One row of the evaluation tables: a checkpoint, or something to hold it against."""

    label: str
    """untrained, unigram, stage1, 'stage1, concept zeroed', ... The page's headline figures look for these names."""
    reference: bool = False
    """A baseline or ablation, set apart from the checkpoints of the run."""
    heldout: Mapping[str, SourceCell] = field(default_factory=dict)
    mixture_bits_per_byte: float | None = None
    mixture: str = ""
    """The stage whose weights that is an average with: only numbers of one mixture compare."""
    ncp_loss: float | None = None
    ncp_r2: float | None = None
    codebook_perplexity: float | None = None
    codebook_used: float | None = None
    codebook_entries: int | None = None
    tasks: Mapping[str, TaskCell] = field(default_factory=dict)
    suites: Mapping[str, SuiteCell] = field(default_factory=dict)
    """Suite -> averages over its families."""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of the DAG."""

    name: str
    fingerprint: str
    state: str
    seconds: float | None
    attempt: int | None
    note: str = ""
    needs: tuple[str, ...] = ()
    """Steps whose output it reads."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """One complete milestone."""

    stage: str
    step: int
    tokens_total: int
    size: int | None
    """Bytes."""
    at: str
    attempt: int | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something a reader must not miss."""

    severity: str
    """error, warning or info."""
    message: str
    when: str = ""


@dataclass(frozen=True, kw_only=True)
class MatchChart:
    """Two smoothed curves, the loss to reach, and where it is reached."""

    title: str
    axis: str
    """`tokens` or `flops`."""
    names: tuple[str, str]
    """Baseline, candidate."""
    x: tuple[Values, Values]
    y: tuple[Values, Values]
    target: float
    reached: float | None
    """On the x axis; None if the candidate never gets there."""


@dataclass(frozen=True, kw_only=True)
class ComparisonView:
    """How soon one run reaches another's final training loss (`jobs.analysis.comparison`)."""

    baseline: str
    candidate: str
    target_loss: float
    token_ratio: float | None
    """Share of the baseline's tokens; None if it never gets there."""
    token_interval: tuple[float, float | None] | None = None
    compute_ratio: float | None = None
    compute_interval: tuple[float, float | None] | None = None
    shared: bool = False
    """Both sides hold the very same steps, so there is nothing to save."""
    final_gap: float
    """Baseline's loss minus the candidate's at the end."""
    note: str = ""
    """What a reader must know: the smoothing, the seeds, that the order check was forced."""
    chart: MatchChart | None = None


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Everything the page says about one run."""

    name: str
    recipe: str
    status: str
    created: str
    """A date and time as text, with its zone."""
    description: str = ""
    stages: tuple[StageView, ...] = ()
    curves: tuple[Curve, ...] = ()
    evaluations: tuple[EvaluationRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    log: str = ""
    """The end of the run's log."""
    rate: float | None = None
    """Tokens per second, now."""
    eta: str = ""
    """Training time left, as text; empty while nothing trains."""
    alerts: tuple[Alert, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Name -> value, shown under the title: parameters, commit, workers, storage, ..."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The recipe as plain values, for differences between runs."""
