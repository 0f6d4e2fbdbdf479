"""A local folder as it is: every file below it, links followed once, and what can't be read said instead of left out.

A folder that is reached a second time (a link to one that was walked, or back to one above it) is not walked again, so a
loop ends and no document comes twice. Folders come before links, so which of two names is kept does not depend on order.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A readable kind of file."""

    size: int
    stamp: str
    """Times of last change, in ns: of the content, and of the file's record, which no tool sets back."""
    changed_ns: int
    """The later of the two."""
    identity: tuple[int, int]
    link: bool


@dataclass
class Walked:
    """What a folder holds, by path relative to it."""

    files: dict[str, LocalFile] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    """Entries that are no readable file or folder, and why."""
    twice: dict[str, str] = field(default_factory=dict)
    """Links that lead to a folder walked already."""


def walk(top: str) -> Walked:
    """Walk a folder. A missing one is empty. Never opens a file, so a FIFO cannot hang it."""
    found = Walked()
    seen: dict[tuple[int, int], str] = {}
    folders, links = deque([""]), deque[str]()
    while folders or links:
        link = not folders
        relative = links.popleft() if link else folders.popleft()
        path = os.path.join(top, relative) if relative else top
        try:
            info = os.stat(path)
            key = (info.st_dev, info.st_ino)
            if key in seen:
                found.twice[relative] = f"the same folder as {seen[key] or '.'!r}"
                continue
            seen[key] = relative
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except FileNotFoundError as error:
            if relative:
                found.troubles[relative] = _reason(error)
            continue
        except OSError as error:
            found.troubles[relative] = _reason(error)
            continue
        for entry in entries:
            _sort_in(entry, f"{relative}/{entry.name}" if relative else entry.name, found, folders, links)
    return found


def _sort_in(
    entry: os.DirEntry[str], name: str, found: Walked, folders: deque[str], links: deque[str]
) -> None:
    link = entry.is_symlink()
    try:
        info = os.stat(entry.path)
    except OSError as error:
        found.troubles[name] = f"a link to nothing ({_reason(error)})" if link else _reason(error)
        return
    if stat.S_ISDIR(info.st_mode):
        (links if link else folders).append(name)
    elif stat.S_ISREG(info.st_mode):
        if not os.access(entry.path, os.R_OK):
            found.troubles[name] = "no right to read it"
            return
        found.files[name] = LocalFile(
            size=info.st_size,
            stamp=f"{info.st_mtime_ns}-{info.st_ctime_ns}",
            changed_ns=max(info.st_mtime_ns, info.st_ctime_ns),
            identity=(info.st_dev, info.st_ino),
            link=link,
        )
    else:
        found.troubles[name] = f"{_kind(info.st_mode)}, not a file"


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
