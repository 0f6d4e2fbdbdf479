"""Which checkpoint a person means: `RUN`, `RUN/STAGE`, `RUN/STAGE@STEP`, or a folder of safetensors.

Without a stage it is the last one that has a milestone; without a step, the newest milestone that lies at or before the
run's stop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.errors import InputError, RecipeError, nearest
from curriculum.schema import Recipe
from jobs.recorded import recorded_recipe
from jobs.runs import read_run
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


def find_checkpoint(storage: Storage, reference: str) -> CheckpointRef:
    """The milestone that `reference` names. Raises RecipeError naming what does not exist and what does."""
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
            step = store.newest_milestone(stages[name]["milestone"])
        else:
            step = int(match["step"])
            if store.milestone(step) is None:
                known = ", ".join(map(str, store.milestones())) or "none"
                raise RecipeError(
                    f"checkpoint {reference!r}: {name} has no milestone at step {step}; it has {known}"
                )
        if step is not None:
            return CheckpointRef(
                run=match["run"],
                recipe=recipe,
                stage=name,
                step_key=stages[name]["key"],
                step=step,
                tokenizer_key=_tokenizer_key(storage, record),
            )
    raise RecipeError(f"checkpoint {reference!r}: no milestone yet; see ncp status {match['run']}")


def load_checkpoint(
    storage: Storage, reference: CheckpointRef, device: str = "cpu"
) -> tuple[NCPModel, Tokenizer]:
    """The whole model on one device, and its tokenizer."""
    from jobs.training.milestones import load_milestone
    from ncp_model import build_model
    from pipeline.data.tokenizer import Tokenizer

    model = build_model(reference.recipe.model, device="meta").to_empty(device=device)
    load_milestone(storage, reference.step_key, reference.step, model, None)
    return model.eval(), Tokenizer.load(storage, reference.tokenizer_key)


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


def _tokenizer_key(storage: Storage, record: dict[str, Any]) -> str:
    step = next(step for step in record["steps"] if step["kind"] == "tokenizer")
    receipt = StepStore(storage, step["key"]).receipt()
    if receipt is None:
        raise RecipeError(
            f"run {record['run']!r}: its tokenizer is not done yet; see ncp status {record['run']}"
        )
    return receipt["tokenizer"]
