"""What a person should hear about a training without asking: small immutable rows beside the step that had the trouble.

`{step}/alerts/{attempt:06d}-{optimizer step:09d}-{kind}[-{who}].json`, read by `ncp status`, the pages, and the driver,
which sends them on (`jobs.show.notify`). Writing one never hurts the training: where storage fails, the trouble is told by
the error that ends the attempt.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import asdict, dataclass, field

from jobs.runs.gates import SPIKE_SIGMAS, SPIKE_WINDOW
from jobs.runs.metric_log import MetricRow
from pipeline.answers import patience
from pipeline.storage import Storage

ALERT_SECONDS = 5.0
"""How long an alert waits for storage that does not answer."""
DEAD_ROWS = 16
"""Rows in a row with too many dead codewords before that is an alert: a batch may miss some by chance."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One row. `severity` is `error` where the attempt ends with it, else `warning`."""

    kind: str
    """`skipped_step`, `loss_spike`, `non_finite_loss`, `unstable`, `stall`, `dead_codebook`, `checkpoint_failed`,
    `retention_failed`."""
    severity: str
    message: str
    step: int | None
    """Optimizer step."""
    attempt: int
    run: str
    at: float = field(default_factory=time.time)


def write_alert(storage: Storage, step_key: str, alert: Alert, who: str = "") -> None:
    """Keep an alert; the same one of the same attempt and optimizer step is kept once."""
    name = f"{alert.attempt:06d}-{alert.step or 0:09d}-{alert.kind}{f'-{who}' if who else ''}"
    # It is storage that fails, or it will be told by the next write.
    with contextlib.suppress(Exception), patience(ALERT_SECONDS, ALERT_SECONDS):
        storage.create_json(f"{step_key}/alerts/{name}.json", asdict(alert))


def alert_keys(storage: Storage, step_key: str) -> list[str]:
    """Keys of a step's alerts, oldest attempt first, then by optimizer step."""
    names = storage.children(f"{step_key}/alerts")
    return [f"{step_key}/alerts/{name}" for name in names if name.endswith(".json")]


def read_alert(storage: Storage, key: str) -> Alert:
    return Alert(**storage.read_json(key))


class AlertWatch:
    """Looks at the rows of one attempt, on rank 0, and writes what a person should hear."""

    def __init__(
        self,
        storage: Storage,
        step_key: str,
        attempt: int,
        run: str,
        *,
        codebook_entries: int = 0,
        dead_codebook_share: float = 1.0,
    ):
        self._storage, self._step_key = storage, step_key
        self._attempt, self._run = attempt, run
        self._entries, self._dead_share = codebook_entries, dead_codebook_share
        self._losses: deque[float] = deque(maxlen=SPIKE_WINDOW)
        self._spiking = False
        self._dead_rows = 0

    def observe(self, row: MetricRow) -> None:
        """Judge one row by the ones before it."""
        loss, values = row.values["ntp"], row.values
        if loss is None:
            self.warn(
                "no_labels", "no token of this global batch has a label; weights stay as they are", row.step
            )
            return
        spike = self._is_spike(loss)
        if values.get("skipped"):
            self.warn(
                "skipped_step",
                f"skipped: loss {loss:.4g}, gradient norm {values['grad_norm']:.4g} are outliers of the steps before",
                row.step,
            )
        elif spike and not self._spiking:
            self.warn(
                "loss_spike", f"loss {loss:.4g} lies over {SPIKE_SIGMAS:g} sigma above its window", row.step
            )
        self._spiking = spike
        self._losses.append(loss)
        self._watch_codebook(row)

    def warn(self, kind: str, message: str, step: int | None) -> None:
        self._write(kind, "warning", message, step)

    def fail(self, kind: str, error: BaseException, step: int | None) -> None:
        """The attempt ends with `error`."""
        self._write(kind, "error", str(error), step)

    def _is_spike(self, loss: float) -> bool:
        count = len(self._losses)
        if count < SPIKE_WINDOW // 2:
            return False
        mean = sum(self._losses) / count
        deviation = (sum((value - mean) ** 2 for value in self._losses) / (count - 1)) ** 0.5
        return loss > mean + SPIKE_SIGMAS * deviation

    def _watch_codebook(self, row: MetricRow) -> None:
        dead = row.values.get("codebook_dead")
        if dead is None or not self._entries:
            return
        share = dead / self._entries
        self._dead_rows = self._dead_rows + 1 if share > self._dead_share else 0
        if self._dead_rows == DEAD_ROWS:
            self.warn(
                "dead_codebook",
                f"{share:.0%} of the codewords were no chunk's nearest in each of the last {DEAD_ROWS} rows "
                f"(runtime.alert_dead_codebook_share {self._dead_share:g})",
                row.step,
            )

    def _write(self, kind: str, severity: str, message: str, step: int | None) -> None:
        alert = Alert(
            kind=kind, severity=severity, message=message, step=step, attempt=self._attempt, run=self._run
        )
        write_alert(self._storage, self._step_key, alert)
