"""A bounded directory of whole shards on local disk, for storage that is remote.

Worth it only when every shard of a mixture fits: windows are drawn in random order over all shards, so with less room
a shard of 128 MiB would be fetched again and again for windows of 32 KiB. The loader decides; this class only keeps
its promise of size. Files are named by their content, so processes and runs on one host share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from pathlib import Path

from pipeline.data.errors import ShardError
from pipeline.data.shards import ShardEntry
from pipeline.storage import Storage

_READ_BYTES = 4 << 20


class ShardCache:
    """`directory` never holds more than `max_bytes` of whole shards (plus the one being fetched)."""

    def __init__(self, directory: str, max_bytes: int):
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self._verified: set[str] = set()

    def fetch(self, storage: Storage, output: str, entry: ShardEntry) -> Path:
        """The local copy of a shard, fetched and verified if it is not there. Raises ShardError if it is not whole."""
        path = self.directory / f"{entry.sha256}.arrow"
        if self._holds(path, entry):
            with contextlib.suppress(OSError):
                os.utime(path)  # recently used
            return path
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
        try:
            digest = hashlib.sha256()
            with storage.open_read(f"{output}/{entry.key}") as remote, open(temporary, "wb") as local:
                while chunk := remote.read(_READ_BYTES):
                    digest.update(chunk)
                    local.write(chunk)
            if digest.hexdigest() != entry.sha256:
                where = storage.uri(f"{output}/{entry.key}")
                raise ShardError(
                    f"{where}: fetched {temporary.stat().st_size} bytes that are not the recorded shard"
                )
            self._make_room(entry.bytes)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def _holds(self, path: Path, entry: ShardEntry) -> bool:
        """Whether the copy is there and whole; it is read once by each process, and one that changed is fetched anew."""
        if not path.exists() or path.stat().st_size != entry.bytes:
            return False
        if entry.sha256 not in self._verified:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    return False
            self._verified.add(entry.sha256)
        return True

    def _make_room(self, wanted: int) -> None:
        """Remove the least recently used shards until `wanted` bytes fit. A mapped file lives on until it is unmapped."""
        kept = sorted(
            (file.stat().st_mtime_ns, file.stat().st_size, file) for file in self.directory.glob("*.arrow")
        )
        used = sum(size for _, size, _ in kept)
        for _, size, file in kept:
            if used + wanted <= self.max_bytes:
                return
            file.unlink(missing_ok=True)
            used -= size
