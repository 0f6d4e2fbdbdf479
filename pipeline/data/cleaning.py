"""Cleaning a source before tokenization, by Ray Data: quality filters and deduplication (`clean:`), off by default.

Three passes: filter (and sign) every group of the pin, compare (MinHash bucket by bucket), finish every group. A pass
redoes nothing that has a receipt.
The result is a Dolma-format source in storage with a pin of its own, and is staged like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray.data
from ray.data import TaskPoolStrategy

from curriculum.schema import CleaningSpec, DataSpec
from pipeline.data.clean_group import (
    MINHASH,
    bucket_receipt,
    compare_bucket,
    filter_group,
    find_duplicates,
    finish_group,
)
from pipeline.data.errors import SourceError
from pipeline.data.groups import Group, plan_groups
from pipeline.data.objects import PinnedFile
from pipeline.data.pins import Pin, content_digest
from pipeline.data.token_files import refuse_token_files
from pipeline.data.verified import hash_object
from pipeline.storage import Storage

GroupTask = Callable[[Group], dict[str, Any]]
Work = Callable[[int], object]


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """A cleaned source."""

    pin: Pin
    """Its files lie below the step's output; `location` is a key prefix in storage."""
    counts: dict[str, Any]
    """documents_read, skipped (by reason), removed (by filter and reason), duplicates, documents."""


def clean_source(
    *,
    storage: Storage,
    output: str,
    pin: Pin,
    spec: CleaningSpec,
    data: DataSpec,
    parallelism: int,
    cpus_per_task: float,
    text_key: str = "text",
) -> Cleaned:
    """Filter and deduplicate `pin` into `{output}/data/`, write `{output}/cleaned.json` last, and return the new pin.

    Needs an initialised Ray. Raises SourceError naming the source for damaged input, too many bad lines, or when nothing
    is left, saying which filters removed how much.
    """
    refuse_token_files(pin.source, (file.path for file in pin.files), f"sources.{pin.source}.clean")
    groups = plan_groups(pin, data)
    run = partial(_each_group, storage, pin, groups, parallelism, cpus_per_task)
    work = {"storage": storage, "output": output, "groups": len(groups), "spec": spec}
    filtered = run(
        f"{output}/filtered",
        partial(_filter, root=pin.open_root(storage), data=data, text_key=text_key, **work),
    )
    unreadable = sum(receipt["unreadable"] for receipt in filtered)
    read = sum(receipt["documents_read"] for receipt in filtered)
    if unreadable > data.bad_line_tolerance * read:
        raise SourceError(
            f"sources.{pin.source}: {unreadable} of {read} lines are unreadable, over data.bad_line_tolerance "
            f"{data.bad_line_tolerance:g}; see {storage.uri(f'{output}/quarantine')}"
        )
    if spec.dedup != "none" and not storage.exists(f"{output}/dedup/done.json"):
        if spec.dedup == "minhash":
            buckets = [
                bucket
                for bucket in range(MINHASH.num_buckets)
                if not storage.exists(bucket_receipt(output, bucket))
            ]
            _in_tasks(
                pin.source, buckets, partial(compare_bucket, storage, output), parallelism, cpus_per_task
            )
        find_duplicates(storage, output, spec)
        storage.write_json(f"{output}/dedup/done.json", {"dedup": spec.dedup})
    finished = run(f"{output}/data", partial(_finish, **work))

    removed = _add_up(receipt["removed"] for receipt in filtered)
    skipped = _add_up(receipt["skipped"] for receipt in filtered)
    documents = sum(receipt["documents"] for receipt in finished)
    duplicates = sum(receipt["kept"] for receipt in filtered) - documents
    if read != documents + duplicates + sum(removed.values()) + sum(skipped.values()) or duplicates < 0:
        raise AssertionError(
            f"{output}: documents went missing: {read=} {documents=} {duplicates=} {removed=} {skipped=}"
        )
    if not documents:
        raise SourceError(
            f"sources.{pin.source}: cleaning left nothing of {read} documents; removed: {removed}"
        )
    gone = duplicates + sum(removed.values())
    if gone > spec.max_removed * read:
        raise SourceError(
            f"sources.{pin.source}.clean: {gone:,} of {read:,} documents would be removed ({duplicates:,} as duplicates, by "
            f"filter: {removed or 'none'}), over clean.max_removed {spec.max_removed:g}; raise it if that is meant"
        )
    counts = {
        "documents_read": read,
        "skipped": skipped,
        "removed": removed,
        "duplicates": duplicates,
        "documents": documents,
    }
    cleaned = Cleaned(pin=_pin(storage, output, pin.source, finished), counts=counts)
    storage.write_json(
        f"{output}/cleaned.json", {"source": pin.source, "digest": cleaned.pin.digest, "counts": counts}
    )
    return cleaned


def _filter(group: Group, **work: Any) -> dict[str, Any]:
    return filter_group(group=group, **work)


def _finish(group: Group, **work: Any) -> dict[str, Any]:
    return finish_group(group=group, **work)


def _each_group(
    storage: Storage,
    pin: Pin,
    groups: list[Group],
    parallelism: int,
    cpus_per_task: float,
    receipts: str,
    task: GroupTask,
) -> list[dict[str, Any]]:
    """Run `task` for every group without a receipt below the key `receipts`; all receipts, in group order."""
    todo = {group.number: group for group in groups if not storage.exists(f"{receipts}/{group.name}.json")}
    _in_tasks(pin.source, list(todo), lambda number: task(todo[number]), parallelism, cpus_per_task)
    return [_checked(storage, receipts, group) for group in groups]


def _in_tasks(source: str, numbers: list[int], work: Work, parallelism: int, cpus_per_task: float) -> None:
    """Call `work` for each number in a Ray Data task of its own; each leaves its receipt in storage.

    Raises SourceError for a user's error in any of them, and what Ray raises for everything else.
    """
    if not numbers:
        return
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    plan = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
    strategy = TaskPoolStrategy(size=max(1, min(parallelism, len(numbers))))
    done = plan.map(partial(_caught, work), num_cpus=cpus_per_task, compute=strategy)
    for row in done.iter_rows():
        if row["error"]:
            raise SourceError(f"{source}: {row['error']}")


def _caught(work: Work, row: dict[str, Any]) -> dict[str, Any]:
    """One row of the plan; a user's error comes back as text, a bug as an exception."""
    try:
        work(row["number"])
    except SourceError as error:
        return {"number": row["number"], "error": str(error)}
    return {"number": row["number"], "error": ""}


def _checked(storage: Storage, receipts: str, group: Group) -> dict[str, Any]:
    receipt = storage.read_json(f"{receipts}/{group.name}.json")
    if receipt["digest"] != group.digest:
        raise ValueError(
            f"{storage.uri(receipts)}/{group.name}.json: made from other content; delete its directory"
        )
    return receipt


def _add_up(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def _pin(storage: Storage, output: str, source: str, finished: list[dict[str, Any]]) -> Pin:
    files: list[PinnedFile] = []
    entries: list[tuple[str, int, str]] = []
    for receipt in finished:
        size, digest = hash_object(storage, f"{output}/{receipt['path']}")
        files.append(
            PinnedFile(path=receipt["path"], size=size, sha256=digest, content_size=receipt["content_size"])
        )
        entries.append((receipt["path"], receipt["content_size"], receipt["content_sha256"]))
    return Pin(
        source=source, location=output, builtin=True, files=tuple(files), digest=content_digest(entries)
    )
