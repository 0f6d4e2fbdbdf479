"""What a store says of its objects: size and content tag, without reading them.

S3 gives an etag, the HF Hub the sha256 of every large file. Both change with the content, so either can pin an object
that nobody wants to download twice.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pipeline.storage import Storage

_HUB_DATASET = re.compile(
    r"hf://datasets/(?P<repository>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<inside>.*))?"
)


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

    @property
    def weight(self) -> int:
        return self.content_size or self.size


def list_objects(root: Storage, prefix: str = "") -> dict[str, PinnedFile]:
    """Every object below `prefix` by its path relative to that, as the store's own listing describes it.

    The listing of a Hub commit cannot change and takes minutes for a large mix, whose sources are pinned one by one.
    """
    if root.url.startswith("hf://") and "@" in root.url:
        return _list_commit(root.url, prefix)
    return _list(root, prefix)


@functools.lru_cache(maxsize=4)
def _list_commit(url: str, prefix: str) -> dict[str, PinnedFile]:
    return _list(Storage(url), prefix)


def _list(root: Storage, prefix: str) -> dict[str, PinnedFile]:
    top = root.path(prefix)
    listing = root.listing(prefix)
    return {name[len(top) + 1 :]: describe(name[len(top) + 1 :], info) for name, info in listing.items()}


def stat_object(root: Storage, path: str) -> PinnedFile:
    """What the store says of one object now. Raises FileNotFoundError."""
    return describe(path, root.stat(path))


def describe(path: str, info: dict[str, Any]) -> PinnedFile:
    """An fsspec `info` record as a PinnedFile: LFS sha256, S3 ETag or git blob id, whichever there is."""
    large = info.get("lfs") or {}
    etag = info.get("ETag") or info.get("etag") or info.get("blob_id") or ""
    return PinnedFile(
        path=path,
        size=info["size"],
        sha256=large.get("sha256", ""),
        etag="" if large else str(etag).strip('"'),
    )


def fixed_revision(location: str) -> str:
    """A Hub location with its branch replaced by the commit it stands for now; any other location as it is.

    A dataset's branch moves; its commits do not, so a pin holds for as long as the Hub keeps the commit.
    """
    match = _HUB_DATASET.fullmatch(location)
    if match is None:
        return location
    from huggingface_hub import HfApi  # half a second of imports that only Hub sources need

    repository, revision, inside = match["repository"], match["revision"], match["inside"]
    commit = HfApi().dataset_info(repository, revision=unquote(revision) if revision else None).sha
    return f"hf://datasets/{repository}@{commit}" + (f"/{inside}" if inside else "")
