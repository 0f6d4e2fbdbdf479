"""The model of a checkpoint and its tokenizer: of a run's milestone, or of a folder of safetensors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from curriculum.errors import InputError, RecipeError
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.runs.checkpoint_ref import CheckpointRef, find_checkpoint, read_tokenizer
from jobs.runs.retention import pinned
from pipeline.dag.store import StepStore
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

if TYPE_CHECKING:
    from ncp_model import NCPModel


def load_checkpoint(
    storage: Storage, reference: CheckpointRef, device: str = "cpu"
) -> tuple[NCPModel, Tokenizer]:
    """The whole model on one device, and its tokenizer. The milestone is pinned while it is read.

    Raises DamagedMilestone or DamagedRecord, naming the file, for what is not what was written.
    """
    from jobs.training.milestones import load_milestone  # brings torch
    from ncp_model import build_model  # brings torch

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


def load_folder(folder: Path, device: str = "cpu") -> tuple[NCPModel, Tokenizer]:
    """A model from a folder of safetensors (`ncp export`, or the public forms) with a `tokenizer.json` beside them.

    Raises InputError naming the folder for files that are missing, cut or of another form.
    """
    from safetensors import SafetensorError

    from ncp_model.hf import load_model  # brings torch

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
