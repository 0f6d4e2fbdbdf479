"""Which files belong to a source, which were left out and why, and what must not be passed over.

A glob that only names a folder takes what can be read there: other kinds of files, hidden ones and second names of the same
file are left out, and plan and pin say so. What could hold text and can't be read ends the pin with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.data.errors import SourceError
from pipeline.data.formats import KNOWN, format_of
from pipeline.data.globs import matches, named_by, select
from pipeline.data.objects import Listing, PinnedFile

SHOWN = 3
"""Names in a message, before the rest becomes a count."""


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """The files of a source by path, as the place lists them now."""

    files: Mapping[str, PinnedFile]
    left_out: tuple[tuple[str, str], ...] = ()
    """(path, reason) of what a reader of the folder might have expected, sorted by path."""


def source_files(name: str, place: str, listing: Listing, globs: Sequence[str], *, text: bool) -> SourceFiles:
    """The part of a listing that `globs` select. With `text` only formats that the readers know.

    Raises SourceError naming the file: one that was asked for and can't be read, a kind of file that a glob names and no
    reader knows, or one text in two codecs. None selected is no error here.
    """
    _check_readable(name, place, listing, globs)
    paths = select(listing.files, globs)
    chosen = set(paths)
    left_out = dict(listing.twice)
    for path in listing.files:
        if path not in chosen and any(matches(path, glob, hidden=True) for glob in globs):
            left_out[path] = "its name, or a folder's, begins with '.' or '_'; a glob that writes it takes it"
    for path in listing.troubles:
        left_out.setdefault(path, listing.troubles[path])
    files: dict[str, PinnedFile] = {}
    for path in paths:
        target = listing.same_file.get(path)
        if target in chosen:
            left_out[path] = f"a link to {target!r}, which is read already"
        elif text and format_of(path) is None:
            if named_by(path, globs):
                raise SourceError(
                    f"sources.{name}: {place}: {path!r} is of no kind that can be read; known: {KNOWN}; convert it, "
                    f"or name other files in sources.{name}.globs"
                )
            left_out[path] = "of no kind that can be read"
        else:
            files[path] = listing.files[path]
    if text:
        _check_copies(name, place, files)
    return SourceFiles(files=files, left_out=tuple(sorted(left_out.items())))


def named(paths: Sequence[str]) -> str:
    """The first few names and how many more."""
    shown = ", ".join(repr(path) for path in paths[:SHOWN])
    return f"{shown} and {len(paths) - SHOWN} more" if len(paths) > SHOWN else shown


def _check_readable(name: str, place: str, listing: Listing, globs: Sequence[str]) -> None:
    for path, reason in sorted(listing.troubles.items()):
        leaf = path.rpartition("/")[2]
        folder = "." not in leaf and not any(part[:1] in ("_", ".") for part in path.split("/"))
        if not path or folder or any(matches(path, glob) for glob in globs):
            raise SourceError(
                f"sources.{name}: {place}: {path or place!r}: {reason}; put it right, take it away, or name the wanted "
                f"files in sources.{name}.globs"
            )


def _check_copies(name: str, place: str, files: Mapping[str, PinnedFile]) -> None:
    stems: dict[str, str] = {}
    for path in files:
        known = format_of(path)
        if known is None or known.kind in ("tokens", "boundaries"):
            continue
        first = stems.setdefault(known.stem, path)
        if first != path:
            raise SourceError(
                f"sources.{name}: {place}: {first!r} and {path!r} are one text in two forms, and every document would come "
                f"twice; take one away, or name one form in sources.{name}.globs"
            )
