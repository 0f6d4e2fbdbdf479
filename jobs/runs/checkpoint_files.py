"""The files of a checkpoint against what its marker says of them: sizes, and the sha256 that was made while they were written.

No torch here: whoever only wants to know whether a milestone is sound (`ncp verify`) needs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from curriculum.errors import InputError
from pipeline.data.verified import hash_object
from pipeline.records import DamagedRecord
from pipeline.storage import Storage

READERS = 4
"""Files of one process that are hashed at the same time; hashlib gives up the interpreter's lock."""


class DamagedMilestone(InputError):
    """A milestone whose files or marker are not what was written. The message names the first such file.

    `step_key` and `step` say which, where it is known, so that it can be set aside and the one before be taken.
    """

    def __init__(self, message: str, step_key: str = "", step: int = -1):
        super().__init__(message, step_key, step)
        self.step_key, self.step = step_key, step

    def __str__(self) -> str:
        return self.args[0]


def file_problem(storage: Storage, key: str, name: str, size: int, sha256: str | None) -> str:
    """What is wrong with the file `name` of the checkpoint under `key`, naming it; empty when it is what was written.

    Without a sha256 (a milestone from before there were any) only the size is compared. A file that differs is read a second
    time before it is condemned. Raises OSError where storage does not answer.
    """
    place = storage.uri(f"{key}/{name}")
    problem = ""
    for _ in range(2):
        try:
            found = storage.size(f"{key}/{name}")
            if found != size:
                return f"{place} has {found:,} bytes, its marker says {size:,}"
            if sha256 is None or hash_object(storage, f"{key}/{name}") == (size, sha256):
                return ""
            problem = f"{place} has another sha256 than when it was written: it is damaged"
        except FileNotFoundError:
            return f"{place} is missing"
    return problem


def files_problem(
    storage: Storage,
    key: str,
    files: Mapping[str, int],
    sha256: Mapping[str, str],
    names: Iterable[str] | None = None,
) -> str:
    """The first problem among the checkpoint's files, or among `names` of them; empty when all are what was written."""
    chosen = sorted(files if names is None else names)
    with ThreadPoolExecutor(READERS, "ncp-verify") as pool:
        problems = pool.map(
            lambda name: file_problem(storage, key, name, files[name], sha256.get(name)), chosen
        )
        return next((problem for problem in problems if problem), "")


def read_tokenizer_file(storage: Storage, key: str, sha256: str) -> bytes:
    """A tokenizer.json, proved by the sha256 in its step's receipt. Raises DamagedRecord naming the file."""
    data = storage.read_bytes(key)
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedRecord(
            f"{storage.uri(key)}: its sha256 is not the receipt's; it is damaged: put it back, or make it again with "
            "`ncp run ... --force tokenizer`"
        )
    return data


def share_of(files: Mapping[str, int], rank: int, ranks: int) -> list[str]:
    """The files that one rank of a group verifies for all: the largest first, each to whoever has the least to read."""
    loads = [0] * ranks
    mine: list[str] = []
    for name, size in sorted(files.items(), key=lambda item: (-item[1], item[0])):
        chosen = loads.index(min(loads))
        loads[chosen] += size
        if chosen == rank:
            mine.append(name)
    return mine


def milestone_problem(storage: Storage, marker: Mapping[str, Any]) -> str:
    """What is wrong with a milestone's data, by its marker; empty when it is what was written."""
    return files_problem(storage, marker["data"], marker["files"], marker.get("sha256", {}))


def is_verifiable(marker: Mapping[str, Any]) -> bool:
    """Whether the marker holds digests; without them (older ones) only sizes can be compared."""
    return bool(marker.get("sha256"))
