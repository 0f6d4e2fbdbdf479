"""Commands on checkpoints: `ncp generate`, `ncp export`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import DEFAULT_STORAGE, StorageOption
from jobs.runs.checkpoint_ref import find_checkpoint
from pipeline.storage import Storage


class ExportType(enum.Enum):
    """Types that `ncp export` writes."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def generate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="RUN, RUN/STAGE, RUN/STAGE@STEP, or a folder of safetensors."
        ),
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue; empty starts a new document.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the smallest set of this probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Continue a text, streamed as it is made. Example: ncp generate demo-1a2b3c/stage2 --prompt "def " --temperature 0.8"""
    from jobs.generate import generate_text  # brings tokenizers

    pieces = generate_text(
        storage,
        checkpoint,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    to: Annotated[str, typer.Option(help="A new folder.")],
    stage: Annotated[
        str | None, typer.Option(help="Without one, the last stage that has a milestone.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Without one, the newest milestone.")] = None,
    dtype: Annotated[ExportType, typer.Option(help="Of the written tensors.")] = ExportType.float32,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """A milestone as safetensors under the published names. Example: ncp export demo-1a2b3c --stage stage2 --to ./model"""
    from jobs.export import export_checkpoint  # brings tokenizers

    opened = Storage(storage)
    name = run + (f"/{stage}" if stage else "") + (f"@{step}" if step is not None else "")
    reference = export_checkpoint(opened, find_checkpoint(opened, name), Path(to), dtype.value)
    print(f"{reference.stage} step {reference.step} -> {to}")
