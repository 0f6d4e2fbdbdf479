"""The content tag of a pinned file, and its proof from bytes.

A pin holds a sha256 where the bytes were read or the Hub told it, else the store's tag. Two of these tags are hashes of
the content themselves: S3's of an object written in one part is its MD5, the Hub's of a small file its git blob id. The
tag of an object in several parts depends on the parts, and proves nothing about the same bytes elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pipeline.data.objects import PinnedFile
from pipeline.storage import Storage

_READ_BYTES = 1 << 20


def content_hash(file: PinnedFile) -> tuple[Any, str] | None:
    """A fresh hash object and the hex that the file's bytes must give; None when only a store can tell."""
    if file.sha256:
        return hashlib.sha256(), file.sha256
    if re.fullmatch(r"[0-9a-f]{32}", file.etag):
        return hashlib.md5(usedforsecurity=False), file.etag
    if re.fullmatch(r"[0-9a-f]{40}", file.etag):
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), file.etag
    return None


def has_content(root: Storage, file: PinnedFile) -> bool:
    """Whether the bytes there now are the pinned ones, by reading them. Only for a file that `content_hash` can prove."""
    proof = content_hash(file)
    assert proof is not None
    computed, expected = proof
    with root.open_read(file.path) as stream:
        while data := stream.read(_READ_BYTES):
            computed.update(data)
    return computed.hexdigest() == expected


def same_tag(one: PinnedFile, other: PinnedFile) -> bool | None:
    """Whether two listings' tags say the same content; None when they are not of one kind."""
    if one.sha256 and other.sha256:
        return one.sha256 == other.sha256
    if one.etag and other.etag:
        return True if one.etag == other.etag else None
    return None


def content_digest(entries: list[tuple[str, int, str]]) -> str:
    """sha256 over (path, size, hash) in path order: the identity of a list of files."""
    return hashlib.sha256(json.dumps([list(entry) for entry in sorted(entries)]).encode()).hexdigest()
