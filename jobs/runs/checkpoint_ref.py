"""Which checkpoint a person means: `RUN`, `RUN/STAGE`, `RUN/STAGE@STEP`, or a folder of safetensors.

Without a stage it is the last one that has a milestone; without a step, the newest milestone that lies at or before the
run's stop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe
from jobs.runs.checkpoint_files import read_tokenizer_file
from jobs.runs.record import read_run
from jobs.runs.recorded import reading, recorded_recipe
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

if TYPE_CHECKING:
    pass

_REFERENCE = re.compile(r"(?P<run>[^/@]+)(/(?P<stage>[^/@]+))?(@(?P<step>\d+))?")


@dataclass(frozen=True, kw_only=True)
class CheckpointRef:
    """One milestone of one run's stage."""

    run: str
    recipe: Recipe
    stage: str
    step_key: str
    step: int
    tokenizer_key: str
    tokenizer_sha256: str = ""
    exact: bool = True
    """Whether the step was named, so that no other one may take its place."""


def find_checkpoint(storage: Storage, reference: str, *, before: int | None = None) -> CheckpointRef:
    """The milestone that `reference` names, or the newest that lies before the step `before`. Raises RecipeError naming what
    does not exist and what does."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise RecipeError(f"checkpoint {reference!r}: not of the form RUN, RUN/STAGE or RUN/STAGE@STEP")
    record = read_run(storage, match["run"])
    recipe = recorded_recipe(record)
    stages = {step["name"]: step for step in record["steps"] if step["kind"] == "stage"}
    if match["stage"] is not None and match["stage"] not in stages:
        raise RecipeError(
            f"checkpoint {reference!r}: no stage {match['stage']!r}; {nearest(match['stage'], stages)}"
        )
    wanted = [match["stage"]] if match["stage"] is not None else list(reversed(stages))
    for name in wanted:
        store = StepStore(storage, stages[name]["key"])
        if match["step"] is None:
            stop = stages[name]["milestone"]
            step = store.newest_milestone(stop if before is None else min(stop, before - 1))
        else:
            step = int(match["step"])
            if step not in store.milestones():
                known = ", ".join(map(str, store.milestones())) or "none"
                raise RecipeError(
                    f"checkpoint {reference!r}: {name} has no milestone at step {step}; it has {known}"
                )
        if step is not None:
            receipt = _tokenizer_receipt(storage, record)
            with reading(f"the tokenizer's receipt of run {match['run']!r}"):
                tokenizer_key, tokenizer_sha256 = receipt["tokenizer"], receipt.get("sha256", "")
            return CheckpointRef(
                run=match["run"],
                recipe=recipe,
                stage=name,
                step_key=stages[name]["key"],
                step=step,
                tokenizer_key=tokenizer_key,
                tokenizer_sha256=tokenizer_sha256,
                exact=match["step"] is not None,
            )
    raise RecipeError(f"checkpoint {reference!r}: no milestone yet; see ncp status {match['run']}")


def read_tokenizer(storage: Storage, reference: CheckpointRef) -> bytes:
    """The tokenizer's file. Raises DamagedRecord when it is not the one its step wrote."""
    return read_tokenizer_file(storage, reference.tokenizer_key, reference.tokenizer_sha256)


def _tokenizer_receipt(storage: Storage, record: dict[str, Any]) -> dict[str, Any]:
    step = next(step for step in record["steps"] if step["kind"] == "tokenizer")
    receipt = StepStore(storage, step["key"]).receipt()
    if receipt is None:
        raise RecipeError(
            f"run {record['run']!r}: its tokenizer is not done yet; see ncp status {record['run']}"
        )
    return receipt
