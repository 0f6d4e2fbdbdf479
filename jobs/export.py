"""`ncp export`: a milestone as safetensors under the published names, with config.json and the tokenizer."""

from __future__ import annotations

from pathlib import Path

from curriculum.errors import InputError, RecipeError
from jobs.runs.checkpoint_ref import CheckpointRef
from jobs.training.load_checkpoint import load_soundest
from pipeline.storage import Storage


def export_checkpoint(storage: Storage, reference: CheckpointRef, folder: Path, dtype: str) -> CheckpointRef:
    """Write `reference` into `folder`; returns what was written, which is an earlier milestone when no step was named and the
    newest is damaged. Raises RecipeError when the folder already holds something, DamagedMilestone for a damaged one."""
    import torch

    from ncp_model.hf import save_pretrained  # brings torch

    prepare_folder(folder)
    reference, model, tokenizer = load_soundest(storage, reference)
    save_pretrained(model.state_dict(), reference.recipe.model, folder, dtype=getattr(torch, dtype))
    tokenizer.save(Storage(str(folder.absolute())), "tokenizer.json")
    return reference


def prepare_folder(folder: Path) -> None:
    """Make the folder, before anything is loaded for a place that cannot be written. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise InputError(
            f"--to: {str(folder)!r} cannot be made ({error.strerror}); choose another folder"
        ) from error
    if filled:
        raise RecipeError(f"--to: {str(folder)!r} is not empty; choose a new folder")
