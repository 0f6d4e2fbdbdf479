"""What a store says of its objects: size and content tag, without reading them.

S3 gives an etag, the HF Hub the sha256 of every large file. Both change with the content, so either can pin an object
that nobody wants to download twice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pipeline.storage import Storage


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


def list_objects(root: Storage) -> dict[str, PinnedFile]:
    """Every object below `root` by its relative path, as the store's own listing describes it.

    The listing of a Hub commit cannot change and takes minutes for a large mix, whose sources are pinned one by one.
    """
    if root.url.startswith("hf://") and "@" in root.url:
        return _list_commit(root.url)
    return _list(root)


@functools.lru_cache(maxsize=4)
def _list_commit(url: str) -> dict[str, PinnedFile]:
    return _list(Storage(url))


def _list(root: Storage) -> dict[str, PinnedFile]:
    fresh = {} if root.local or root.fs.protocol == "memory" else {"refresh": True}
    listing: dict[str, Any] = root.fs.find(root.root, detail=True, **fresh)
    base = len(root.root) + 1
    return {name[base:]: describe(name[base:], info) for name, info in listing.items()}


def stat_object(root: Storage, path: str) -> PinnedFile:
    """What the store says of one object now. Raises FileNotFoundError."""
    return describe(path, root.fs.info(root.path(path)))


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
    if not location.startswith("hf://"):
        return location
    from huggingface_hub import HfFileSystem  # half a second of imports that only Hub sources need

    fs = HfFileSystem()
    resolved = fs.resolve_path(location)
    commit = fs._api.repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision).sha
    prefix = f"{resolved.repo_type}s/" if resolved.repo_type != "model" else ""
    inside = f"/{resolved.path_in_repo}" if resolved.path_in_repo else ""
    return f"hf://{prefix}{resolved.repo_id}@{commit}{inside}"
