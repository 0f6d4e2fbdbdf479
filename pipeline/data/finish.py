"""From the receipts of all groups to the manifest of a source: the accounts are checked before anything is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.schema import DataSpec
from pipeline.data.counters import UNREADABLE, Counters
from pipeline.data.errors import SourceError
from pipeline.data.groups import Group
from pipeline.data.manifest import Manifest
from pipeline.data.pins import Pin
from pipeline.data.tokenize_group import GroupReceipt
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

DENSITY = 10
"""The rest of a source is taken to hold at most this many times the documents a byte of what was read."""


def check_tolerance(
    storage: Storage,
    output: str,
    pin: Pin,
    data: DataSpec,
    groups: Sequence[Group],
    receipts: Mapping[int, GroupReceipt],
) -> None:
    """Raise SourceError once the groups done settle that the source has more unreadable lines than tolerated.

    Settled means: even if the rest were whole and its documents DENSITY times as small.
    """
    counters = Counters()
    for receipt in receipts.values():
        counters.add(receipt.counters)
    weights = {group.number: sum(file.weight for file in group.files) for group in groups}
    done = sum(weights[number] for number in receipts)
    rest = sum(weights.values()) - done
    most = counters.documents_read * (1 + DENSITY * rest / done) if done else 0
    if counters.unreadable > data.bad_line_tolerance * most:
        so_far = f", after {len(receipts)} of {len(groups)} groups" if len(receipts) < len(groups) else ""
        in_order = [receipts[number] for number in sorted(receipts)]
        raise _too_many(storage, output, pin, data, counters, in_order, so_far)


def finish_source(
    storage: Storage,
    output: str,
    pin: Pin,
    data: DataSpec,
    tokenizer: Tokenizer,
    receipts: list[GroupReceipt],
    cleaning: Mapping[str, Any] | None = None,
) -> Manifest:
    """Add up the receipts of all groups (in group order), check them, and write and return the manifest.

    `cleaning` holds the counts of the cleaning that made `pin`, whose documents left must be the ones read here.

    Raises SourceError naming the source: more unreadable lines than tolerated, or nothing left to train on.
    """
    counters = Counters()
    for receipt in receipts:
        counters.add(receipt.counters)
    counters.check(pin.source)
    quarantine = tuple(receipt.quarantine for receipt in receipts if receipt.quarantine)
    if counters.unreadable > data.bad_line_tolerance * counters.documents_read:
        raise _too_many(storage, output, pin, data, counters, receipts, "")
    if not counters.documents_written:
        raise SourceError(
            f"sources.{pin.source}: no documents to train on in {len(pin.files)} files of {pin.location} "
            f"({counters.documents_read} read, {counters.documents_held_out} held out, skipped: "
            f"{counters.skipped or 'none'}); check the files and their 'text' field"
        )
    manifest = Manifest(
        source=pin.source,
        output=output,
        tokenizer=tokenizer.sha256,
        eos_id=tokenizer.eos_id,
        table=Manifest.of_shards([entry for receipt in receipts for entry in receipt.shards]),
        heldout=tuple(entry for receipt in receipts for entry in receipt.heldout),
        counters=counters,
        quarantine=quarantine,
        cleaning=cleaning,
    )
    if cleaning is not None and cleaning["documents"] != counters.documents_read:
        raise AssertionError(
            f"{output}: cleaning left {cleaning['documents']} documents, {counters.documents_read} were read"
        )
    if manifest.tokens != counters.tokens_written or manifest.heldout_tokens != counters.tokens_held_out:
        raise AssertionError(
            f"{output}: shards hold {manifest.tokens} tokens, receipts {counters.tokens_written}"
        )
    manifest.verify(storage)
    manifest.save(storage)
    return manifest


def _too_many(
    storage: Storage,
    output: str,
    pin: Pin,
    data: DataSpec,
    counters: Counters,
    receipts: Sequence[GroupReceipt],
    so_far: str,
) -> SourceError:
    reasons = ", ".join(f"{counters.skipped[name]} {name}" for name in UNREADABLE if name in counters.skipped)
    kept = next((receipt.quarantine for receipt in receipts if receipt.quarantine), "quarantine")
    return SourceError(
        f"sources.{pin.source}: {counters.unreadable} of {counters.documents_read} lines are unreadable, over "
        f"data.bad_line_tolerance {data.bad_line_tolerance:g}; see {storage.uri(f'{output}/{kept}')} "
        f"({reasons}{so_far})"
    )
