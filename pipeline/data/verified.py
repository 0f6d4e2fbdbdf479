"""Reading a pinned file, with the proof that it is still the pinned one.

The hash is computed on the way, as the bytes stream by: no second read, and a file that was replaced, cut or damaged
after it was pinned is caught at the latest at its end, before anything made from it is committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from pipeline.data.content_tag import content_hash, has_content
from pipeline.data.errors import ChangedSincePinned
from pipeline.data.objects import PinnedFile, stat_object
from pipeline.storage import Storage

ANEW = "restore it, or take what is there now with: ncp data pin SOURCE --renew"
_DRAIN_BYTES = 1 << 20


@contextlib.contextmanager
def open_verified(root: Storage, file: PinnedFile) -> Iterator[BinaryIO]:
    """A stream over a pinned file's bytes as stored. Raises ChangedSincePinned on entry for a missing file or another
    size, and when the block ends cleanly for another content."""
    where = root.uri(file.path)
    try:
        now = stat_object(root, file.path)
    except FileNotFoundError as error:
        raise ChangedSincePinned(f"{where}: pinned but no longer there; {ANEW}") from error
    if root.local and not os.path.isfile(root.path(file.path)):
        raise ChangedSincePinned(f"{where}: no file any more; {ANEW}")
    if now.size != file.size:
        raise ChangedSincePinned(f"{where}: {now.size} bytes now, {file.size} when it was pinned; {ANEW}")
    proof = content_hash(file)
    other_tag = bool(file.etag and now.etag and now.etag != file.etag)
    if other_tag and (proof is None or not has_content(root, file)):
        raise ChangedSincePinned(f"{where}: etag {now.etag}, pinned {file.etag}; the content changed; {ANEW}")
    if file.etag and not now.etag and proof is None:
        raise ChangedSincePinned(
            f"{where}: pinned by an object store's tag {file.etag}, which proves nothing about a file here; {ANEW}"
        )
    if not file.sha256 and now.etag:
        proof = None  # the tag has told already
    computed, expected = proof or (hashlib.sha256(), "")
    with root.open_read(file.path) as raw:
        reader = _HashingReader(raw, computed)
        yield cast(BinaryIO, reader)
        reader.drain()
        if reader.count != file.size:
            raise ChangedSincePinned(
                f"{where}: ended after {reader.count} of {file.size} bytes; the read was cut short"
            )
        found = reader.computed.hexdigest()
        if expected and found != expected:
            kind = "sha256" if file.sha256 else "etag"
            raise ChangedSincePinned(
                f"{where}: {kind} {found[:12]}..., pinned {expected[:12]}...; the content changed; {ANEW}"
            )


@contextlib.contextmanager
def open_verified_seekable(root: Storage, file: PinnedFile) -> Iterator[BinaryIO]:
    """The same for formats that need to seek (parquet): verified in full first, from a local copy if remote."""
    with contextlib.ExitStack() as stack:
        if root.local:
            with open_verified(root, file):
                pass
            yield stack.enter_context(root.open_read(file.path))
        else:
            spool = stack.enter_context(tempfile.TemporaryFile(prefix="ncp-download-"))
            with open_verified(root, file) as remote:
                shutil.copyfileobj(remote, spool, _DRAIN_BYTES)
            spool.seek(0)
            yield cast(BinaryIO, spool)


def hash_object(storage: Storage, key: str) -> tuple[int, str]:
    """(size, sha256) of one object, by reading it once."""
    with storage.open_read(key) as raw:
        reader = _HashingReader(raw, hashlib.sha256())
        reader.drain()
    return reader.count, reader.computed.hexdigest()


class _HashingReader(io.RawIOBase):
    """A read-only stream that counts and hashes what passes."""

    def __init__(self, raw: BinaryIO, computed: Any):
        super().__init__()
        self.raw = raw
        self.computed = computed
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.raw.read(size)
        self.computed.update(data)
        self.count += len(data)
        return data

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        while self.read(_DRAIN_BYTES):
            pass
