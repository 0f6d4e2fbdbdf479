"""A kept list of files against what a place holds now: names and sizes, then tags or times, then bytes where those differ.

A month-long corpus that nobody touched is listed and not read. A file whose times changed, or that lies elsewhere now, is
read once; the same bytes are the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.data.content_tag import content_hash, has_content, same_tag
from pipeline.data.objects import PinnedFile
from pipeline.data.source_files import named
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of a list of files."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    files: tuple[PinnedFile, ...]
    """The kept files with their stamps of now; only meaningful when `same`."""

    @property
    def same(self) -> bool:
        return not (self.added or self.removed or self.changed)

    def __str__(self) -> str:
        parts = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        return "; ".join(f"{len(paths)} {what} ({named(paths)})" for what, paths in parts if paths)


def compare(
    kept: Sequence[PinnedFile], now: Mapping[str, PinnedFile], root: Storage, *, same_place: bool
) -> Comparison:
    """Compare `kept` with the listing `now` of `root`. `same_place`: the kept stamps were taken there.

    Reads what the listing leaves open. Raises OSError for a file that is listed and can't be read.
    """
    by_path = {file.path: file for file in kept}
    added = tuple(sorted(now.keys() - by_path.keys()))
    removed = tuple(sorted(by_path.keys() - now.keys()))
    both = [file for file in kept if file.path in now]
    changed = {file.path for file in both if file.size != now[file.path].size}
    hopeless = bool(added or removed or changed)  # then nothing is read only to make the list longer
    files = []
    for file in both:
        listed = now[file.path]
        files.append(replace(file, stamp=listed.stamp))
        if file.path in changed:
            continue
        tags = same_tag(file, listed)
        stood_still = same_place and bool(file.stamp) and file.stamp == listed.stamp
        if tags is None and not stood_still:
            proof = content_hash(file)
            tags = (
                (hopeless and not same_place) or has_content(root, file)
                if proof is not None
                else not file.etag
            )
        if tags is False:
            changed.add(file.path)
    return Comparison(added=added, removed=removed, changed=tuple(sorted(changed)), files=tuple(files))
