"""Which shard sets a storage holds, and which one a person means: by its path or URL, or as the source of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from curriculum.errors import InputError, nearest
from pipeline.data.accounts import account_line
from pipeline.data.errors import ShardError
from pipeline.data.manifest import Manifest
from pipeline.records import unseal_lines
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class ShardSet:
    """A staged source in a storage."""

    key: str
    source: str
    account: str
    """What its staging read, wrote and left out; or why it cannot be told."""


def shard_sets(storage: Storage) -> Iterator[ShardSet]:
    """All shard sets, in the order of their keys; one that cannot be read is a row that says why."""
    for name in storage.children("steps"):
        key = f"steps/{name}"
        if not name.startswith("shards-"):
            continue
        source = name.removeprefix("shards-").rpartition("-")[0]
        if not storage.exists(f"{key}/manifest.json"):
            yield ShardSet(key=key, source=source, account="not finished: no manifest.json")
            continue
        try:
            manifest = Manifest.load(storage, key)
        except (InputError, OSError, KeyError, TypeError, ValueError) as error:
            yield ShardSet(key=key, source=source, account=f"cannot be read: {error}")
            continue
        counters = manifest.counters.to_json()
        yield ShardSet(key=key, source=manifest.source, account=account_line({"counters": counters}))


def output_of_run(record: dict[str, Any], source: str | None, where: str) -> str:
    """The key of a run's shard set. Raises ShardError for a source that the run does not stage, or none named of several."""
    keys = {
        step["name"].removeprefix("shards-"): step["key"]
        for step in record["steps"]
        if step["kind"] == "shards"
    }
    if source is None and len(keys) == 1:
        return next(iter(keys.values()))
    if source is None:
        raise ShardError(
            f"{where}: give one of its sources after the run: {', '.join(sorted(keys)) or 'it has none'}"
        )
    if source not in keys:
        raise ShardError(f"{where}: no source {source!r}; {nearest(source, keys)}")
    return keys[source]


def quarantined(storage: Storage, output: str, limit: int) -> Iterator[dict[str, Any]]:
    """The first bad lines of a staged source, of its finished groups in order: file, line, reason, detail, head."""
    left = limit
    for key in storage.keys(f"{output}/quarantine"):
        for line in unseal_lines(storage.read_bytes(key), storage.uri(key)).splitlines():
            if left <= 0:
                return
            left -= 1
            yield json.loads(line)
