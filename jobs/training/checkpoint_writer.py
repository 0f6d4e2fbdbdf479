"""DCP's writers, hashing what they write while they write it.

A second read of a checkpoint would cost as much as writing it. So every stream that DCP opens for writing passes its bytes
through sha256 in a thread beside the write: both give up the interpreter's lock, so the digest hides behind the disk or the
network. `digests` is complete once `dcp.save` has returned, for the files that this rank wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from pipeline.storage import Storage

BESIDE_BYTES = 1 << 18
"""Writes of at least this size are hashed in the other thread; handing over smaller ones costs more than hashing them."""


class HashingFiles:
    """DCP's file system, as it is, with a digest of every file that is written through it."""

    def __init__(self, files: Any):
        self._files = files
        self.digests: dict[str, str] = {}
        """File name -> sha256."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with self._files.create_stream(path, mode) as raw:
            if "w" not in mode:
                yield raw
                return
            with ThreadPoolExecutor(1, "ncp-digest") as beside:
                stream = _HashingStream(raw, beside)
                yield stream
            self.digests[os.path.basename(os.fspath(path))] = stream.sha256.hexdigest()

    def rename(self, path: Any, new_path: Any) -> None:
        """DCP writes its table of contents under a name for the time being."""
        self._files.rename(path, new_path)
        digest = self.digests.pop(os.path.basename(os.fspath(path)), None)
        if digest is not None:
            self.digests[os.path.basename(os.fspath(new_path))] = digest


class _HashingStream:
    """A stream that is written from its beginning to its end; there is no `seek`, so the digest is that of the file."""

    def __init__(self, raw: Any, beside: ThreadPoolExecutor):
        self._raw, self._beside = raw, beside
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        hashed: Future[None] | None = None
        if len(view) < BESIDE_BYTES:
            self.sha256.update(view)
        else:
            hashed = self._beside.submit(self.sha256.update, view)
        try:
            written = self._raw.write(data)
        finally:
            if hashed is not None:  # the bytes may be gone once this returns
                hashed.result()
        if written is not None and written != len(view):
            raise OSError(f"storage took {written} of {len(view)} bytes")
        return len(view)

    def tell(self) -> int:
        return self._raw.tell()

    def flush(self) -> None:
        self._raw.flush()

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()

    @property
    def closed(self) -> bool:
        return self._raw.closed


def hashing_writer(storage: Storage, key: str) -> tuple[FileSystemWriter, HashingFiles]:
    """DCP's writer for `key`, and where its digests will be."""
    writer = FileSystemWriter(storage.uri(key)) if storage.local else FsspecWriter(storage.uri(key))
    files = HashingFiles(writer.fs)
    writer.fs = files  # type: ignore[assignment]
    return writer, files
