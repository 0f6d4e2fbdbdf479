"""Storage: one root URL under which everything durable lies.

This is the only module that resolves storage URLs and writes below them. Everything else names *keys*, which
are relative to the root: `runs/demo-1a2b3c/run.json`. These guarantees carry the whole system:

- `write_bytes` and `open_write` are all-or-nothing: a reader sees the old object or the new one, never a part,
  and an exception inside `open_write` leaves nothing (plain fsspec would commit the half that was written).
- `create` is an exclusive put: of any number of callers on any number of hosts exactly one gets True. On a
  local disk it is a hard link, on S3 a conditional put (`If-None-Match: *`).
- no name is a pattern: a key that holds `[1]` or `*` is that key, and only listed objects are ever deleted.
- a store that does not answer is waited for (pipeline.answers), then StorageUnavailable; one that says no is StorageRefused.
- `probe` proves the first two on the backend at hand before any work is done, and refuses a backend without them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.answers import StorageError, StorageRefused, StorageUnavailable, patiently
from pipeline.group_rights import GroupRights
from pipeline.places import check_place
from pipeline.records import decode_record, encode_record
from pipeline.redaction import holds_credentials, redact

_MEMORY_CREATE = threading.Lock()
"""The in-memory backend has no conditional put of its own; it only ever serves one process."""


__all__ = ["Storage", "StorageError", "StorageRefused", "StorageUnavailable"]
_DELETED_AT_ONCE = 1000
for _protocol in ("s3", "s3a"):  # by name: nobody pays for S3's libraries who does not use it
    fsspec.register_implementation(_protocol, "pipeline.patient_s3.PatientS3", clobber=True)
T = TypeVar("T")


class Storage:
    """A root URL and its filesystem. Cheap to build, safe to pickle (only the URL travels).

    `Storage("ncp-store")`, `Storage("/mnt/shared/ncp")`, `Storage("s3://bucket/ncp")`, `Storage("memory://x")`.
    """

    def __init__(self, url: str):
        if holds_credentials(url):
            raise StorageError(
                f"storage: {redact(url)!r} carries credentials, which would be kept in records and logs; "
                "leave them out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
            )
        check_place(url)
        if url.startswith(("s3://", "s3a://")):
            from pipeline.patient_s3 import register  # brings s3fs

            register()  # whatever another library has put there since
        try:
            fs, root = _opened(url)
        except (ValueError, ImportError) as error:
            raise StorageError(
                f"storage: {url!r} cannot be opened ({error}); use a directory or s3://..."
            ) from error
        self.fs = fs
        self.local = isinstance(fs, LocalFileSystem)
        self.root = os.path.abspath(root) if self.local else root.rstrip("/")
        self.url = self.root if self.local else fs.unstrip_protocol(self.root)
        if self.local and (file := _file_on_the_way(self.root)):
            raise StorageError(
                f"storage: {url!r} cannot be a directory, because {file!r} is a file; choose another --storage"
            )
        self._waits_itself = self.local or fs.protocol == "memory" or "s3" in fs.protocol
        self._rights = GroupRights(self.root) if self.local else None

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.url,)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    # --- names ---------------------------------------------------------------------------------------------

    def path(self, key: str) -> str:
        """The backend's own path of `key`. Refuses a key that would leave the root."""
        parts = key.split("/")
        if key.startswith("/") or ".." in parts or "\\" in key or "\0" in key:
            raise StorageError(
                f"storage: key {key!r} leaves the storage root; use a relative key without '..'"
            )
        return f"{self.root}/{key}" if key else self.root

    def uri(self, key: str) -> str:
        """`key` as a path or URL that other libraries (torch DCP, Ray, pyarrow) open by themselves."""
        return self.path(key) if self.local else self.fs.unstrip_protocol(self.path(key))

    def local_path(self, key: str) -> Path | None:
        """Where `key` lies on this machine's disk, for memory-mapping; None when storage is remote."""
        return Path(self.path(key)) if self.local else None

    # --- reading -------------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        return self._ask(lambda: self.fs.exists(self.path(key)))

    def size(self, key: str) -> int:
        """Size in bytes. Raises FileNotFoundError."""
        return self._ask(lambda: self.fs.info(self.path(key))["size"])

    def read_bytes(self, key: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""
        return self._ask(lambda: self.fs.cat_file(self.path(key)))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from offset `start`: one ranged GET on S3."""
        return self._ask(lambda: self.fs.cat_file(self.path(key), start=start, end=start + length))

    def read_json(self, key: str) -> Any:
        """The record stored under `key`, proved by its digest. Raises FileNotFoundError, or DamagedRecord naming the key."""
        return decode_record(self.read_bytes(key), self.uri(key))

    def open_read(self, key: str) -> BinaryIO:
        return cast(BinaryIO, self._ask(lambda: self.fs.open(self.path(key), "rb")))

    def children(self, prefix: str) -> list[str]:
        """Names directly below `prefix`, sorted; empty when there is no such prefix."""
        try:
            entries = self._ask(lambda: self.fs.ls(self.path(prefix), detail=False, **self._fresh))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {
            entry.rstrip("/").rsplit("/", 1)[-1]
            for entry in entries
            if entry.rstrip("/") != self.path(prefix)
        }
        return sorted(name for name in names if not name.startswith(".tmp-"))

    def keys(self, prefix: str) -> list[str]:
        """Every object below `prefix`, as keys relative to the root, sorted."""
        listed = self.listing(prefix)
        # Other libraries leave empty "folder/" objects on S3; s3fs lists them by a name that no object has.
        found = [name for name, info in listed.items() if not str(info.get("Key", name)).endswith("/")]
        base = len(self.root) + 1
        return sorted(key[base:] for key in found if not key.rsplit("/", 1)[-1].startswith(".tmp-"))

    def total_bytes(self, prefix: str) -> int:
        """Bytes of everything below `prefix`, or of the object of that name."""
        listed = self.listing(prefix)
        return sum(info.get("size") or 0 for info in listed.values())

    def listing(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Everything below `prefix`, or the object of that name, as the backend tells it: its own path -> its `info`."""
        try:
            found = self._ask(lambda: self.fs.find(self.path(prefix), detail=True, **self._fresh))
        except FileNotFoundError:
            return {}
        return {name: info for name, info in found.items() if info.get("type") != "directory"}

    def stat(self, key: str) -> dict[str, Any]:
        """The backend's `info` of one object. Raises FileNotFoundError."""
        return self._ask(lambda: self.fs.info(self.path(key)))

    # --- writing -------------------------------------------------------------------------------------------

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write or replace `key`, all or nothing."""
        if self.local:
            with self.open_write(key) as file:
                file.write(data)
        else:
            self._ask(lambda: self.fs.pipe_file(self.path(key), data))

    def write_json(self, key: str, value: Any) -> None:
        self.write_bytes(key, encode_record(value))

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` only if it does not exist. True for exactly one caller, False for every other.

        Callers that contend must write different contents (a holder, an attempt, a time), since on S3 the one that
        won after a lost answer is told from the others by finding its own.
        """
        path = self.path(key)
        if self.local:
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
            return True
        with _MEMORY_CREATE if self.fs.protocol == "memory" else contextlib.nullcontext():
            try:
                self._ask(lambda: self.fs.pipe_file(path, data, mode="create"))
            except OSError as error:
                if not isinstance(error, FileExistsError) and not _precondition_failed(error):
                    raise
                # A put whose answer was lost is asked again, and is then refused by its own object.
                return self.fs.protocol != "memory" and self.read_bytes(key) == data
            return True

    def create_json(self, key: str, value: Any) -> bool:
        return self.create(key, encode_record(value))

    @contextlib.contextmanager
    def open_write(self, key: str) -> Iterator[BinaryIO]:
        """A binary file that becomes `key` when the block ends cleanly, and nothing at all when it raises."""
        path = self.path(key)
        if self.local:
            temporary = self._temporary_beside(path)
            try:
                with self._open_shared(temporary) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        else:
            with tempfile.NamedTemporaryFile(prefix="ncp-upload-") as spool:
                yield cast(BinaryIO, spool)
                spool.flush()
                self._ask(lambda: self.fs.put_file(spool.name, path))

    def delete(self, key: str) -> None:
        """Delete one object; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self.fs.rm_file(self.path(key)))

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below `prefix`; a missing one is fine."""
        if not prefix:
            raise StorageError("storage: refusing to delete the storage root")
        if self.local:
            shutil.rmtree(self.path(prefix), onerror=_unless_missing)
        else:
            names = [str(info.get("Key", name)) for name, info in self.listing(prefix).items()]
            for start in range(0, len(names), _DELETED_AT_ONCE):
                self._delete_exactly(names[start : start + _DELETED_AT_ONCE])

    def probe(self) -> None:
        """Prove that this storage can be written and has an exclusive put. Raises StorageError."""
        key = f".tmp-probe-{uuid.uuid4().hex}"  # beside the folders, which may be somebody else's
        try:
            try:
                first, second = self.create(key, b"1"), self.create(key, b"2")
            finally:
                self.delete(key)
        except (StorageRefused, StorageUnavailable):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if self._rights is not None and isinstance(error, PermissionError):
                reason = self._rights.explain(error)
            raise StorageError(
                f"storage: {self.url!r} is not writable ({reason}); choose another --storage"
            ) from error
        if not first or second:
            raise StorageError(
                f"storage: {self.url!r} has no exclusive put (a second conditional write was accepted), so two runs "
                "could both believe they hold a step; use a local disk or an S3 server that honours If-None-Match"
            )

    # --- internals -----------------------------------------------------------------------------------------

    def _ask(self, call: Callable[[], T]) -> T:
        """`call`, as patiently as storage deserves; S3's filesystem waits by itself, request by request."""
        return call() if self._waits_itself else patiently(call, self.url)

    def _delete_exactly(self, names: list[str]) -> None:
        """Delete objects by the backend's own paths."""
        if "s3" in self.fs.protocol:
            self.fs.rm(names)  # PatientS3 takes names as they are
            return
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._ask(lambda name=name: self.fs.rm_file(name))
        if self.fs.protocol == "memory":
            folders = {name.rpartition("/")[0] for name in names}
            for folder in sorted(folders, key=len, reverse=True):
                with contextlib.suppress(OSError):
                    self.fs.rmdir(folder)

    @property
    def _fresh(self) -> dict[str, Any]:
        return {} if self.local or self.fs.protocol == "memory" else {"refresh": True}

    def _write_temporary(self, path: str, data: bytes) -> str:
        temporary = self._temporary_beside(path)
        with self._open_shared(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _temporary_beside(self, path: str) -> str:
        directory, name = os.path.split(path)
        assert self._rights is not None
        self._rights.make_folders(directory)
        return os.path.join(directory, f".tmp-{name}-{uuid.uuid4().hex}")

    def _open_shared(self, path: str) -> BinaryIO:
        assert self._rights is not None
        file = open(path, "wb")  # noqa: SIM115 - the caller closes it
        self._rights.share(file.fileno())
        return file


def _opened(url: str) -> tuple[Any, str]:
    """The filesystem of a place and the path in it. A path never reaches fsspec's parser, which reads `a::b` as a chain."""
    if "://" in url:
        return fsspec.core.url_to_fs(url)
    fs = LocalFileSystem()
    return fs, str(fs._strip_protocol(url))


def _file_on_the_way(path: str) -> str:
    """The nearest ancestor of `path`, or itself, that exists and is no directory; empty when there is none."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path if path and not os.path.isdir(path) and os.path.exists(path) else ""


def _precondition_failed(error: OSError) -> bool:
    """Whether S3 refused a conditional put because the object exists (412) or is being written now (409)."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict")


def _unless_missing(function: Any, path: str, error: Any) -> None:
    """For `shutil.rmtree`: what another process deleted meanwhile is fine."""
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]
