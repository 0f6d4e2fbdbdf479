"""`ncp data ...` and `ncp which-docs`: what lies in the shards, whether it is intact, and who saw which document."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from curriculum.errors import RecipeError
from jobs.commands.data_pin import pin
from jobs.commands.options import DEFAULT_STORAGE, StorageOption
from pipeline.storage import Storage

if TYPE_CHECKING:
    from pipeline.data.tokenizer import Tokenizer

app = typer.Typer(no_args_is_help=True, help="Look into sources and shards: pin, inspect, verify, stats.")
app.command()(pin)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Output directory of a staging step, local or s3://...")
]
TokenizerOption = Annotated[
    str | None, typer.Option(help="A tokenizer.json, to decode with.", metavar="FILE")
]


@app.command()
def inspect(
    path: PathArgument,
    samples: Annotated[int, typer.Option(help="Documents to show the beginning of.")] = 3,
    tokenizer: TokenizerOption = None,
) -> None:
    """What a shard set holds, and the beginnings of a few documents. Example: ncp data inspect ncp-store/steps/shards-x-0123"""
    from pipeline.data import inspect as shard_sets

    storage, output = shard_sets.open_output(path)
    manifest, found = shard_sets.inspect(storage, output, samples=samples, tokenizer=_tokenizer(tokenizer))
    print(f"source      {manifest.source}")
    print(f"tokenizer   {manifest.tokenizer}")
    print(f"shards      {len(manifest.shards):,} ({manifest.tokens:,} tokens)")
    print(f"held out    {len(manifest.heldout):,} ({manifest.heldout_tokens:,} tokens)")
    for name, value in sorted(manifest.counters.to_json().items()):
        print(f"{name:<11} {value}")
    for name, value in (manifest.cleaning or {}).items():
        print(f"cleaning    {name}: {value}")
    for sample in found:
        print(f"\n{sample.doc_key}: {sample.tokens:,} tokens, {sample.n_bytes:,} bytes")
        print(f"  {sample.text!r}" if sample.text is not None else f"  {sample.input_ids}")


@app.command()
def verify(path: PathArgument, tokenizer: TokenizerOption = None) -> None:
    """Check every shard against the manifest: sizes, sha256, tokens, ends of documents. Exit code 1 if anything is wrong. Example: ncp data verify ncp-store/steps/shards-x-0123"""
    from pipeline.data import inspect as shard_sets

    storage, output = shard_sets.open_output(path)
    problems = shard_sets.verify(storage, output, tokenizer=_tokenizer(tokenizer))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{path}: {f'{len(problems)} problems' if problems else 'intact'}")
    if problems:
        raise typer.Exit(1)


@app.command()
def stats(path: PathArgument) -> None:
    """Lengths, bytes per token and the commonest tokens of a shard set, as JSON. Example: ncp data stats ncp-store/steps/shards-x-0123"""
    from pipeline.data import inspect as shard_sets

    storage, output = shard_sets.open_output(path)
    print(json.dumps(asdict(shard_sets.stats(storage, output)), indent=1))


def which_docs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of this storage.")],
    stage: Annotated[str, typer.Option(help="One of its stages.")],
    step: Annotated[
        int | None, typer.Option(help="Optimizer step, from 1: which documents did it see?")
    ] = None,
    document: Annotated[
        str | None, typer.Option(help="SOURCE:PATH:LINE - which steps saw this document?", metavar="KEY")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Which documents a step saw, or which steps saw a document. Example: ncp which-docs demo-1a2b3c --stage stage1 --step 7"""
    from jobs.training.stage_loader import stage_loader  # brings torch, which no other command here needs
    from pipeline.data.which_docs import documents_of_step, steps_of_document

    if (step is None) == (document is None):
        raise RecipeError("which-docs: give exactly one of --step and --document")
    opened = Storage(storage)
    loader, steps = stage_loader(opened, run, stage)
    if step is not None:
        if not 1 <= step <= steps:
            raise RecipeError(f"--step: {step} is not a step of {stage}; it has steps 1 to {steps}")
        for seen in documents_of_step(loader, opened, step - 1):
            part = f"{seen.first_token}..{seen.first_token + seen.tokens} of {seen.document_tokens}"
            print(f"{seen.source}\t{seen.doc_key}\t{part}")
        return
    assert document is not None
    source, separator, key = document.partition(":")
    if not separator:
        raise RecipeError(f"--document: {document!r} is not of the form SOURCE:PATH:LINE")
    try:
        found = steps_of_document(loader, opened, source, key, steps)
    except ValueError as error:
        raise RecipeError(f"--document: {error}") from error
    print(" ".join(str(index + 1) for index in found) or f"none of the {steps} steps")


def _tokenizer(path: str | None) -> Tokenizer | None:
    from pipeline.data.tokenizer import Tokenizer

    if path is None:
        return None
    storage = Storage(path.rpartition("/")[0] or ".")
    return Tokenizer.from_bytes(storage.read_bytes(path.rpartition("/")[2]))
