"""What a store says of its objects: size and content tag, without reading them.

S3 gives an etag, the HF Hub the sha256 of every large file. Both change with the content, so either can pin an object
that nobody wants to download twice. A local file has no tag; its times tell whether its hash is still to be believed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pipeline.data.walk import walk
from pipeline.storage import Storage, StorageUnavailable

_HUB_DATASET = re.compile(
    r"hf://datasets/(?P<repository>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<inside>.*))?"
)
RACE_NS = 2_000_000_000
"""A file changed this recently may change again within one tick of its times, so they prove nothing yet."""


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """One file of a source."""

    path: str
    """Relative to the location, with forward slashes."""
    size: int
    """Bytes as stored, compressed."""
    sha256: str = ""
    """Of the bytes as stored; empty where only an etag is known."""
    etag: str = ""
    """The object store's own content tag, where hashing would mean downloading everything."""
    content_size: int = 0
    """Uncompressed bytes where known, else 0. Grouping prefers it: it does not depend on the compressor."""
    stamp: str = field(default="", compare=False)
    """What its place said of it when its content was last known: times of a local file, the tag of an object. No identity."""

    @property
    def weight(self) -> int:
        return self.content_size or self.size


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Everything below a place."""

    files: dict[str, PinnedFile]
    troubles: dict[str, str] = field(default_factory=dict)
    """Entries that are there and can't be read, and why."""
    twice: dict[str, str] = field(default_factory=dict)
    """Links to a folder that is listed under another name."""
    same_file: dict[str, str] = field(default_factory=dict)
    """Link -> the name under which the same file is listed."""


class Listings:
    """Listings of one plan: a mix has dozens of sources in one place, whose listing takes minutes."""

    def __init__(self) -> None:
        self._places: dict[str, Listing] = {}
        self._revisions: dict[str, str] = {}

    def of(self, root: Storage) -> Listing:
        if root.url not in self._places:
            self._places[root.url] = list_place(root)
        return self._places[root.url]

    def fixed(self, location: str) -> str:
        """`fixed_revision`, asked once."""
        if location not in self._revisions:
            self._revisions[location] = fixed_revision(location)
        return self._revisions[location]


def list_place(root: Storage) -> Listing:
    """Everything below `root`, as it is now. Raises StorageUnavailable, or what the filesystem raises."""
    if not root.local:
        files, troubles = {}, {}
        for path, file in list_objects(root).items():
            reason = unusable(path)
            if reason:
                troubles[path] = reason
            else:
                files[path] = file
        return Listing(files=files, troubles=troubles)
    found = walk(root.root)
    troubles, first = dict(found.troubles), {}
    files: dict[str, PinnedFile] = {}
    still = time.time_ns() - RACE_NS
    for path, local in sorted(found.files.items()):
        reason = unusable(path)
        if reason:
            troubles[path] = reason
            continue
        files[path] = PinnedFile(
            path=path, size=local.size, stamp=local.stamp if local.changed_ns < still else ""
        )
        if not local.link:
            first.setdefault(local.identity, path)
    for path in files:
        first.setdefault(found.files[path].identity, path)
    same = {path: first[found.files[path].identity] for path in files if found.files[path].link}
    return Listing(
        files=files,
        troubles=troubles,
        twice=dict(found.twice),
        same_file={path: target for path, target in same.items() if path != target},
    )


def unusable(path: str) -> str | None:
    """Why a name cannot be a path of a source; None when it can."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if "\\" in path:
        return "its name has a backslash"
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        return "its name is no relative path"
    return None


def list_objects(root: Storage, prefix: str = "") -> dict[str, PinnedFile]:
    """Every object below `prefix` by its path relative to that, as the store's own listing describes it."""
    top = root.path(prefix)
    return {
        name[len(top) + 1 :]: describe(name[len(top) + 1 :], info)
        for name, info in root.listing(prefix).items()
        if name != top and not str(info.get("Key", name)).endswith("/")  # a "folder/" object of other tools
    }


def stat_object(root: Storage, path: str) -> PinnedFile:
    """What the store says of one object now. Raises FileNotFoundError."""
    return describe(path, root.stat(path))


def describe(path: str, info: dict[str, Any]) -> PinnedFile:
    """An fsspec `info` record as a PinnedFile: LFS sha256, S3 ETag or git blob id, whichever there is."""
    large = info.get("lfs") or {}
    etag = info.get("ETag") or info.get("etag") or info.get("blob_id") or ""
    tag = str(etag).strip('"')
    return PinnedFile(
        path=path,
        size=info["size"],
        sha256=large.get("sha256", ""),
        etag="" if large else tag,
        stamp=large.get("sha256", "") or tag,
    )


def fixed_revision(location: str) -> str:
    """A Hub location with its branch replaced by the commit it stands for now; any other location as it is.

    A dataset's branch moves; its commits do not, so a pin holds for as long as the Hub keeps the commit. Raises
    StorageUnavailable when the Hub does not answer.
    """
    match = _HUB_DATASET.fullmatch(location)
    if match is None:
        return location
    from huggingface_hub import HfApi  # half a second of imports that only Hub sources need

    repository, revision, inside = match["repository"], match["revision"], match["inside"]
    try:
        commit = HfApi().dataset_info(repository, revision=unquote(revision) if revision else None).sha
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore"):
            raise StorageUnavailable(
                f"{location}: the Hub does not answer ({type(error).__name__}: {error})"
            ) from error
        raise
    return f"hf://datasets/{repository}@{commit}" + (f"/{inside}" if inside else "")
