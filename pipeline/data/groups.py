"""Groups: the units of staging work, a pure function of the pin and the data settings.

Files go to groups in pin order, and a group is closed once it weighs `data.group_bytes`. No shard crosses a group, so
shards are the same whatever runs beside them, and a group with a receipt never needs to be done again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from curriculum.schema import DataSpec
from pipeline.data.errors import SourceError
from pipeline.data.objects import PinnedFile
from pipeline.data.pins import Pin
from pipeline.data.token_files import companion, is_companion, is_token_file, token_file_of


@dataclass(frozen=True, kw_only=True)
class Group:
    """A run of consecutive files of a pin."""

    number: int
    files: tuple[PinnedFile, ...]

    @property
    def name(self) -> str:
        return f"g{self.number:05d}"

    @property
    def digest(self) -> str:
        """What the group's receipt must repeat: the content that went into it."""
        entries = [[file.path, file.content_size, file.size, file.sha256 or file.etag] for file in self.files]
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def plan_groups(pin: Pin, data: DataSpec) -> list[Group]:
    """The groups of a source, in pin order. A token file and the file of its boundaries are always in one.

    Raises SourceError for boundaries whose token file is not there.
    """
    paths = {file.path for file in pin.files}
    for path in sorted(paths):
        wanted = token_file_of(path)
        if wanted is not None and wanted not in paths:
            raise SourceError(
                f"sources.{pin.source}: {path} holds the boundaries of {wanted}, which is not among the source's files; add it, "
                f"or leave {path} out of sources.{pin.source}.globs"
            )
    groups: list[Group] = []
    files: list[PinnedFile] = []
    weight = 0
    awaited: set[str] = set()
    """Token files of which only one half was seen."""
    for file in pin.files:
        files.append(file)
        weight += file.weight
        if is_companion(file.path):
            wanted = token_file_of(file.path)
            awaited ^= {wanted} if wanted else set()
        elif is_token_file(file.path) and companion(file.path) in paths:
            awaited ^= {file.path}
        if weight >= data.group_bytes and not awaited:
            groups.append(Group(number=len(groups), files=tuple(files)))
            files, weight = [], 0
    if files:
        groups.append(Group(number=len(groups), files=tuple(files)))
    return groups
