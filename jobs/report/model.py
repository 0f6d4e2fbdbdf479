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


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of the DAG."""

    name: str
    fingerprint: str
    state: str
    seconds: float | None
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
class ComparisonView:
    """How soon one run reaches another's final training loss (`jobs.evaluation.comparison`)."""

    baseline: str
    candidate: str
    target_loss: float
    token_ratio: float | None
    """Share of the baseline's tokens; None if it never gets there."""
    token_interval: tuple[float, float] | None = None
    compute_ratio: float | None = None
    compute_interval: tuple[float, float] | None = None
    final_gap: float
    """Baseline's loss minus the candidate's at the end."""
    note: str = ""
    """What a reader must know: the smoothing, the seeds, that the order check was forced."""


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
    alerts: tuple[Alert, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Name -> value, shown under the title: parameters, commit, workers, storage, ..."""
