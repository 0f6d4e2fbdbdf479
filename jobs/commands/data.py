"""`ncp data ...` and `ncp which-docs`: what lies in the shards, whether it is intact, and who saw which document."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from curriculum.errors import RecipeError
from jobs.commands.data_pin import pin
from jobs.commands.options import DEFAULT_STORAGE, StorageOption
from jobs.runs.record import list_runs, read_run
from pipeline.data.accounts import account_line
from pipeline.data.errors import ShardError
from pipeline.storage import Storage

if TYPE_CHECKING:
    from pipeline.data.tokenizer import Tokenizer

app = typer.Typer(
    no_args_is_help=True,
    help="Look into sources and shards: pin, list, inspect, verify, stats, quarantine.",
)
app.command()(pin)

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|PATH", help="A run, or the output directory of a staging step, local or s3://..."
    ),
]
SourceArgument = Annotated[
    str | None, typer.Argument(metavar="SOURCE", help="With a run: which of its sources.")
]
TokenizerOption = Annotated[
    str | None, typer.Option(help="A tokenizer.json, to decode with.", metavar="FILE")
]


@app.command("list")
def list_sets(storage: StorageOption = DEFAULT_STORAGE) -> None:
    """All shard sets of a storage, and what the staging of each read, wrote and left out. Example: ncp data list"""
    from pipeline.data.shard_sets import shard_sets  # brings pyarrow

    found = False
    for one in shard_sets(Storage(storage)):
        found = True
        print(f"{one.key}\n  {one.source}: {one.account}")
    if not found:
        print(f"no shard sets in {storage}")


@app.command()
def quarantine(
    place: PlaceArgument,
    source: SourceArgument = None,
    limit: Annotated[int, typer.Option(help="Lines to show.", min=1)] = 20,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """The lines that could not be read: file, line, reason and how they begin. Example: ncp data quarantine demo-1a2b3c web"""
    from pipeline.data.shard_sets import quarantined  # brings pyarrow

    opened, output = _shard_set(place, source, storage, finished=False)
    shown = 0
    for record in quarantined(opened, output, limit):
        shown += 1
        print(
            f"{record['file']}:{record['line']}  {record['reason']}: {record['detail']}\n  {record['head'][:200]!r}"
        )
    if not shown:
        print(f"{place}: no line is in quarantine")


@app.command()
def inspect(
    place: PlaceArgument,
    source: SourceArgument = None,
    samples: Annotated[int, typer.Option(min=0, help="Documents to show the beginning of.")] = 3,
    tokenizer: TokenizerOption = None,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """What a shard set holds, and the beginnings of a few documents. Example: ncp data inspect demo-1a2b3c stdlib-code"""
    from pipeline.data import inspect as shard_sets  # brings pyarrow

    opened, output = _shard_set(place, source, storage)
    manifest, found = shard_sets.inspect(opened, output, samples=samples, tokenizer=_tokenizer(tokenizer))
    print(f"source      {manifest.source}")
    print(f"tokenizer   {manifest.tokenizer}")
    print(f"shards      {len(manifest.shards):,} ({manifest.tokens:,} tokens)")
    print(f"held out    {len(manifest.heldout):,} ({manifest.heldout_tokens:,} tokens)")
    print(f"account     {account_line({'counters': manifest.counters.to_json()})}")
    for name, value in sorted(manifest.counters.to_json().items()):
        print(f"{name:<11} {value}")
    for name, value in (manifest.cleaning or {}).items():
        print(f"cleaning    {name}: {value}")
    for sample in found:
        print(f"\n{sample.doc_key}: {sample.tokens:,} tokens, {sample.n_bytes:,} bytes")
        print(f"  {sample.text!r}" if sample.text is not None else f"  {sample.input_ids}")


@app.command()
def verify(
    place: PlaceArgument,
    source: SourceArgument = None,
    tokenizer: TokenizerOption = None,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """Check every shard against the manifest: sizes, sha256, tokens, ends of documents. Exit code 1 if anything is wrong. Example: ncp data verify demo-1a2b3c stdlib-code"""
    from pipeline.data import inspect as shard_sets  # brings pyarrow

    opened, output = _shard_set(place, source, storage)
    problems = shard_sets.verify(opened, output, tokenizer=_tokenizer(tokenizer))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{place}{f' {source}' if source else ''}: {f'{len(problems)} problems' if problems else 'intact'}")
    if problems:
        raise typer.Exit(1)


@app.command()
def stats(
    place: PlaceArgument, source: SourceArgument = None, storage: StorageOption = DEFAULT_STORAGE
) -> None:
    """Lengths, bytes per token and the commonest tokens of a shard set, as JSON. Example: ncp data stats demo-1a2b3c stdlib-code"""
    from pipeline.data import inspect as shard_sets  # brings pyarrow

    print(json.dumps(asdict(shard_sets.stats(*_shard_set(place, source, storage))), indent=1))


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
    from jobs.runs.stage_loader import stage_loader  # brings torch, which no other command here needs
    from pipeline.data.which_docs import documents_of_step, steps_of_document  # brings torch

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


def _shard_set(place: str, source: str | None, storage: str, finished: bool = True) -> tuple[Storage, str]:
    """(storage, key) of the shard set that is meant: a run's, or the one at a path."""
    from pipeline.data.inspect import open_output  # brings pyarrow
    from pipeline.data.shard_sets import output_of_run  # brings pyarrow

    if source is None and ("/" in place or os.path.isdir(place)):
        return open_output(place)
    opened = Storage(storage)
    if source is None and place not in list_runs(opened) and opened.exists(f"steps/{place}/manifest.json"):
        return opened, f"steps/{place}"
    output = output_of_run(read_run(opened, place), source, f"run {place}")
    if finished and not opened.exists(f"{output}/manifest.json"):
        raise ShardError(f"{opened.uri(output)}: not staged yet; `ncp status {place}` says how far it is")
    return opened, output


def _tokenizer(path: str | None) -> Tokenizer | None:
    from pipeline.data.tokenizer import Tokenizer  # brings tokenizers

    if path is None:
        return None
    try:
        return Tokenizer.load(Storage(path.rpartition("/")[0] or "."), path.rpartition("/")[2])
    except FileNotFoundError as error:
        raise RecipeError(f"--tokenizer: {path} does not exist; give a tokenizer.json") from error
