"""Looking into a staged source: what it is, whether it is intact, what its documents are like.

`ncp data inspect|verify|stats` print what these functions return. A place is a path or URL of a staging output, the
directory with `manifest.json` in it, whether or not it lies in an ncp store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.errors import ShardError
from pipeline.data.manifest import Manifest
from pipeline.data.shards import FORMAT_VERSION, ShardEntry, check_size, read_documents, read_tokens
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage


def open_output(place: str) -> tuple[Storage, str]:
    """(storage, output prefix) of a staging output given by path or URL. Raises ShardError if there is none."""
    parent, _, name = place.rstrip("/").rpartition("/")
    storage = Storage(parent or ("/" if place.startswith("/") else "."))
    if not name or not storage.exists(f"{name}/manifest.json"):
        raise ShardError(f"{place}: no manifest.json there; give the output directory of a staging step")
    return storage, name


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The beginning of one document."""

    doc_key: str
    tokens: int
    n_bytes: int
    input_ids: list[int]
    text: str | None
    """None without the tokenizer."""


def inspect(
    storage: Storage,
    output: str,
    *,
    samples: int = 3,
    head_tokens: int = 64,
    tokenizer: Tokenizer | None = None,
) -> tuple[Manifest, list[Sample]]:
    """The manifest and the beginnings of `samples` documents, spread evenly over the shards."""
    manifest = Manifest.load(storage, output)
    if tokenizer is not None and tokenizer.sha256 != manifest.tokenizer:
        raise ShardError(
            f"{output}: staged with tokenizer {manifest.tokenizer[:12]}, not {tokenizer.sha256[:12]}"
        )
    found = []
    count = manifest.table.num_rows
    for number in range(min(samples, count)):
        batch = read_documents(
            storage, output, manifest.shard(number * count // samples if samples < count else number)
        )
        ids = batch.column("input_ids")[0].values.to_numpy()
        head = ids[:head_tokens].tolist()
        found.append(
            Sample(
                doc_key=batch.column("doc_key")[0].as_py(),
                tokens=len(ids),
                n_bytes=batch.column("n_bytes")[0].as_py(),
                input_ids=head,
                text=tokenizer.decode(head) if tokenizer else None,
            )
        )
    return manifest, found


def verify(storage: Storage, output: str, *, tokenizer: Tokenizer | None = None) -> list[str]:
    """Every way in which a staged source is not what its manifest says, one line each; empty when it is intact.

    Checks sizes, sha256, rows, tokens, the token offset, the schema's tokenizer, that every document ends in one EOS,
    the accounts, and with the tokenizer that ids decode to as many bytes as recorded (first document of each shard).
    """
    try:
        manifest = Manifest.load(storage, output)
    except (ShardError, OSError, ValueError) as error:
        return [str(error)]
    if tokenizer is not None and tokenizer.sha256 != manifest.tokenizer:
        return [f"{output}: staged with tokenizer {manifest.tokenizer[:12]}, not {tokenizer.sha256[:12]}"]
    problems = []
    for entry in (*manifest.shards, *manifest.heldout):
        try:
            _verify_shard(storage, manifest, entry, tokenizer)
        except ShardError as error:
            problems.append(str(error))
    if manifest.tokens != manifest.counters.tokens_written:
        problems.append(
            f"{output}: shards hold {manifest.tokens} tokens, counted {manifest.counters.tokens_written}"
        )
    try:
        manifest.counters.check(output)
    except AssertionError as error:
        problems.append(str(error))
    return problems


def _verify_shard(
    storage: Storage, manifest: Manifest, entry: ShardEntry, tokenizer: Tokenizer | None
) -> None:
    key = f"{manifest.output}/{entry.key}"
    where = storage.uri(key)
    check_size(storage, manifest.output, entry)
    batch = read_documents(storage, manifest.output, entry)
    metadata = {name.decode(): value.decode() for name, value in (batch.schema.metadata or {}).items()}
    expected = {
        "ncp.format": str(FORMAT_VERSION),
        "ncp.tokenizer": manifest.tokenizer,
        "ncp.eos": str(manifest.eos_id),
    }
    if metadata != expected:
        raise ShardError(f"{where}: schema metadata {metadata}, expected {expected}")
    ids = batch.column("input_ids")
    values, offsets = ids.values.to_numpy(), ids.offsets.to_numpy()
    if not np.array_equal(read_tokens(storage, manifest.output, entry, 0, entry.tokens), values):
        raise ShardError(f"{where}: the token stream is not at offset {entry.token_offset}")
    if len(offsets) < 2 or np.any(np.diff(offsets) < 1) or np.any(values[offsets[1:] - 1] != manifest.eos_id):
        raise ShardError(f"{where}: a document does not end in EOS {manifest.eos_id}")
    if tokenizer is not None:
        _verify_text(where, values[: offsets[1]], batch.column("n_bytes")[0].as_py(), tokenizer)


def _verify_text(where: str, ids: NDArray[np.uint32], n_bytes: int, tokenizer: Tokenizer) -> None:
    """Whether a document decodes to as many bytes as its text had.

    Control tokens may have been text, or the text may have ended in the EOS itself; a token file counts none of them. A
    normalizer changes the bytes and not the text, so behind one only the vocabulary is held against the ids.
    """
    if int(ids.max()) >= tokenizer.vocab_size:
        raise ShardError(f"{where}: id {int(ids.max())} is outside the vocabulary of {tokenizer.vocab_size}")
    if not tokenizer.exact:
        return
    readings = (
        tokenizer.decode(ids[:-1]),
        tokenizer.decode(ids),
        tokenizer.decode(ids, skip_special_tokens=True),
    )
    sizes = [len(text.encode()) for text in readings]
    if n_bytes not in sizes and n_bytes + 1 not in sizes:  # one more for a blank that some put in front
        raise ShardError(f"{where}: its first document decodes to {sizes[0]} bytes, recorded as {n_bytes}")


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What the documents of a source are like."""

    documents: int
    tokens: int
    text_bytes: int
    bytes_per_token: float
    tokens_per_document: dict[str, int]
    """Quantiles: min, p10, p50, p90, p99, max."""
    distinct_ids: int
    most_common: list[tuple[int, int]]
    """(id, count) of the commonest ids."""


def stats(storage: Storage, output: str, *, common: int = 10) -> Statistics:
    """Statistics over all training shards of a staged source, one shard in memory at a time."""
    manifest = Manifest.load(storage, output)
    lengths, text_bytes, counts = [], 0, np.zeros(0, dtype=np.int64)
    for entry in manifest.shards:
        batch: pa.RecordBatch = read_documents(storage, output, entry)
        ids = batch.column("input_ids")
        lengths.append(np.diff(ids.offsets.to_numpy()))
        text_bytes += int(batch.column("n_bytes").to_numpy().astype(np.int64).sum())
        found = np.bincount(ids.values.to_numpy())
        if len(found) > len(counts):
            counts = np.pad(counts, (0, len(found) - len(counts)))
        counts[: len(found)] += found
    every = np.concatenate(lengths)
    points = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    top = np.argsort(counts, kind="stable")[::-1][:common]
    return Statistics(
        documents=len(every),
        tokens=int(every.sum()),
        text_bytes=text_bytes,
        bytes_per_token=text_bytes / int(every.sum()),
        tokens_per_document={name: int(np.quantile(every, point)) for name, point in points.items()},
        distinct_ids=int((counts > 0).sum()),
        most_common=[(int(i), int(counts[i])) for i in top if counts[i]],
    )
