"""A milestone that is not what was written is passed over: its marker is set aside, and a person hears what that costs.

`{step}/damaged/{optimizer step:09d}-{time}.json` keeps the marker and the reason. Markers are created exclusively, so only
after this can the milestone be made again: the trajectory goes on from the one before it, and the result is the same.
The data is deleted when old checkpoints next are (`jobs.runs.retention`). No torch: the driver does it too.
"""

from __future__ import annotations

import time

from jobs.runs.alerts import Alert, write_alert
from jobs.runs.checkpoint_files import DamagedMilestone
from pipeline.dag.store import StepStore
from pipeline.records import DamagedRecord
from pipeline.storage import Storage


def check_marker(storage: Storage, step_key: str, step: int) -> None:
    """Raise DamagedMilestone when the marker of milestone `step` is there and is not what was written."""
    try:
        StepStore(storage, step_key).milestone(step)
    except DamagedRecord as error:
        raise DamagedMilestone(f"milestone {step} of {step_key}: {error}", step_key, step) from error


def set_aside(
    storage: Storage, damage: DamagedMilestone, *, batch_tokens: int, attempt: int, run: str
) -> str:
    """Take the marker of a damaged milestone away and alert; returns the alert's message. Idempotent.

    `batch_tokens`: tokens of one optimizer step of that trajectory. Not for a trajectory that somebody else computes now.
    """
    key, step = damage.step_key, damage.step
    marker = f"{key}/milestones/{step:09d}.json"
    try:
        text = storage.read_bytes(marker).decode("latin-1")
    except FileNotFoundError:
        return str(damage)
    now = time.time()
    storage.write_json(
        f"{key}/damaged/{step:09d}-{time.time_ns():020d}.json",
        {"step": step, "problem": str(damage), "marker": text, "at": now},
    )
    StepStore(storage, key).retract_milestone(step)
    before = StepStore(storage, key).newest_milestone(step)
    lost = step - (before or 0)
    instead = "nothing is left, the stage starts anew" if before is None else f"milestone {before} is taken"
    message = f"{damage}; {instead}: {lost:,} steps ({lost * batch_tokens:,} tokens) are computed again"
    alert = Alert(
        kind="damaged_milestone", severity="error", message=message, step=step, attempt=attempt, run=run
    )
    write_alert(storage, key, alert)
    return message
