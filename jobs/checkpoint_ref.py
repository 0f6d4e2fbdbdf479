"""Which checkpoint a person means: `RUN`, `RUN/STAGE`, `RUN/STAGE@STEP`, or a folder of safetensors.

Without a stage it is the last one that has a milestone; without a step, the newest milestone that lies at or before the
run's stop.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.errors import InputError, RecipeError, nearest
from curriculum.schema import Recipe
from jobs.recorded import reading, recorded_recipe
from jobs.runs import read_run
from jobs.training.checkpoint_files import DamagedMilestone, read_tokenizer_file
from pipeline.dag.store import StepStore
from pipeline.storage import Storage

if TYPE_CHECKING:
    from ncp_model import NCPModel
    from pipeline.data.tokenizer import Tokenizer

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


def load_checkpoint(
    storage: Storage, reference: CheckpointRef, device: str = "cpu"
) -> tuple[NCPModel, Tokenizer]:
    """The whole model on one device, and its tokenizer. The milestone is pinned while it is read.

    Raises DamagedMilestone or DamagedRecord, naming the file, for what is not what was written.
    """
    from jobs.training.milestones import load_milestone
    from jobs.training.retention import pinned
    from ncp_model import build_model
    from pipeline.data.tokenizer import Tokenizer

    model = build_model(reference.recipe.model, device="meta").to_empty(device=device)
    with pinned(storage, reference.step_key, reference.step, "read by a command"):
        load_milestone(storage, reference.step_key, reference.step, model, None)
    read_tokenizer(storage, reference)
    return model.eval(), Tokenizer.load(storage, reference.tokenizer_key)


def load_soundest(
    storage: Storage, reference: CheckpointRef, device: str = "cpu"
) -> tuple[CheckpointRef, NCPModel, Tokenizer]:
    """As `load_checkpoint`; where no step was named and the newest milestone is damaged, the one before it, which is said on
    stderr. One that retention deleted meanwhile is no damage: the newest is taken. Raises DamagedMilestone when the step was named
    or nothing else is left, RecipeError when the step was named and is no longer there."""
    while True:
        try:
            return reference, *load_checkpoint(storage, reference, device)
        except (DamagedMilestone, FileNotFoundError) as error:
            name = f"{reference.run}/{reference.stage}"
            store = StepStore(storage, reference.step_key)
            if reference.step not in store.milestones():  # retention was faster than the pin
                if reference.exact:
                    known = ", ".join(map(str, store.milestones())) or "none"
                    raise RecipeError(
                        f"checkpoint '{name}@{reference.step}': deleted by the run that goes on; it has {known}"
                    ) from error
                reference = find_checkpoint(storage, name)
                continue
            if isinstance(error, FileNotFoundError):
                raise
            step = store.newest_milestone(reference.step - 1)
            if reference.exact or step is None:
                other = "" if step is None else f", or take {name}@{step}"
                raise DamagedMilestone(
                    f"{error}; `ncp verify {reference.run} --set-aside` and `ncp run` make it again{other}",
                    error.step_key,
                    error.step,
                ) from error
            print(f"{error}; {name}@{step} is taken instead", file=sys.stderr)
            reference = replace(reference, step=step)


def read_tokenizer(storage: Storage, reference: CheckpointRef) -> bytes:
    """The tokenizer's file. Raises DamagedRecord when it is not the one its step wrote."""
    return read_tokenizer_file(storage, reference.tokenizer_key, reference.tokenizer_sha256)


def load_folder(folder: Path, device: str = "cpu") -> tuple[NCPModel, Tokenizer]:
    """A model from a folder of safetensors (`ncp export`, or the public forms) with a `tokenizer.json` beside them.

    Raises InputError naming the folder for files that are missing, cut or of another form.
    """
    from safetensors import SafetensorError

    from ncp_model.hf import load_model
    from pipeline.data.tokenizer import Tokenizer

    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise RecipeError(
            f"checkpoint {str(folder)!r}: no tokenizer.json in it; copy the model's tokenizer there"
        )
    try:
        return load_model(folder, device=device).eval(), Tokenizer.load(
            Storage(str(folder.absolute())), tokenizer.name
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        # whatever the readers of other people's files make of a missing field, broken JSON, a shard cut in half
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"checkpoint {str(folder)!r}: cannot be read ({reason}); fetch config.json and every shard again"
        ) from error


def _tokenizer_receipt(storage: Storage, record: dict[str, Any]) -> dict[str, Any]:
    step = next(step for step in record["steps"] if step["kind"] == "tokenizer")
    receipt = StepStore(storage, step["key"]).receipt()
    if receipt is None:
        raise RecipeError(
            f"run {record['run']!r}: its tokenizer is not done yet; see ncp status {record['run']}"
        )
    return receipt
