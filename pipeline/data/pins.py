"""Pins: what exactly a source is, resolved once and kept (design, section 3).

A pin is the sorted list of (relative path, size, hash) of a source's files. Its digest is the source's identity;
where the files lie is runtime, so the same bytes on another disk or in a bucket are the same source. Every later read
is checked against the pin, so a file that changed since is an error and never silently other data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from curriculum.schema import SourceSpec
from pipeline.data.builtin import BUILTIN
from pipeline.data.errors import SourceError
from pipeline.data.globs import select
from pipeline.data.objects import PinnedFile, fixed_revision, list_objects
from pipeline.data.verified import hash_object
from pipeline.storage import Storage, StorageError

PIN_FORMAT = 1
PART_BYTES = 1 << 20
"""Uncompressed bytes of a builtin part: small, so that even the demo has several units of staging work."""


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A source, exactly. `digest` covers names, sizes and hashes of the content alone."""

    source: str
    location: str
    """Directory or URL; for a builtin source the key prefix in storage."""
    builtin: bool
    files: tuple[PinnedFile, ...]
    digest: str

    def open_root(self, storage: Storage) -> Storage:
        """The root that the files' paths are relative to."""
        return Storage(storage.uri(self.location)) if self.builtin else Storage(self.location)


def pin_key(name: str, spec: SourceSpec) -> str:
    """Storage key of a source's pin. It depends on the name and on what selects the files, not on where they lie."""
    selection = {"builtin": spec.builtin, "globs": list(spec.globs)}
    return f"pins/{name}-{_sha256(json.dumps(selection, sort_keys=True).encode())[:12]}.json"


def load_pin(storage: Storage, name: str, spec: SourceSpec, location: str | None) -> Pin | None:
    """The pin made earlier, at `location` if one is given; None if the source was never pinned here."""
    key = pin_key(name, spec)
    if not storage.exists(key):
        return None
    record = storage.read_json(key)
    if record.get("format") != PIN_FORMAT:
        raise SourceError(
            f"sources.{name}: {storage.uri(key)} has pin format {record.get('format')!r}, not {PIN_FORMAT}"
        )
    where = record["location"]
    if location and location != record["requested"] and not spec.builtin:
        where = location
    return Pin(
        source=name,
        location=where,
        builtin=spec.builtin is not None,
        files=tuple(PinnedFile(**file) for file in record["files"]),
        digest=record["digest"],
    )


def make_pin(storage: Storage, name: str, spec: SourceSpec, location: str | None) -> Pin:
    """Resolve a source and keep the result; return the kept pin if there is one already (idempotent).

    Raises SourceError naming the source: no location, an unknown builtin, an unreadable place, no matching files.
    """
    found = load_pin(storage, name, spec, location)
    if found is not None:
        return found
    pin = _lay_out_builtin(storage, name, spec.builtin) if spec.builtin else _resolve(name, spec, location)
    record = {
        "format": PIN_FORMAT,
        "source": name,
        "requested": location,
        "location": pin.location,
        "files": [dataclasses.asdict(file) for file in pin.files],
        "digest": pin.digest,
    }
    storage.create_json(pin_key(name, spec), record)  # of two racing callers one wins, and both use its pin
    kept = load_pin(storage, name, spec, location)
    assert kept is not None
    return kept


def content_digest(entries: list[tuple[str, int, str]]) -> str:
    """sha256 over (path, size, hash) in path order."""
    return _sha256(json.dumps([list(entry) for entry in sorted(entries)]).encode())


def _resolve(name: str, spec: SourceSpec, location: str | None) -> Pin:
    if not location:
        raise SourceError(f"sources.{name}: no location; set runtime.locations.{name} to a directory or URL")
    try:
        root = Storage(fixed_revision(location))
        found = list_objects(root)
    except (StorageError, OSError, ValueError) as error:
        raise SourceError(f"runtime.locations.{name}: {location!r} cannot be listed ({error})") from error
    paths = select(found, spec.globs)
    if not paths:
        raise SourceError(
            f"sources.{name}: no file below {location!r} matches {', '.join(spec.globs)}; "
            f"check runtime.locations.{name} and sources.{name}.globs"
        )
    files = tuple(_hashed(root, path) if root.local else found[path] for path in paths)
    digest = content_digest([(file.path, file.size, file.sha256 or file.etag) for file in files])
    return Pin(source=name, location=root.url, builtin=False, files=files, digest=digest)


def _hashed(root: Storage, path: str) -> PinnedFile:
    """Local files have no content tag of their own, so they are read once."""
    size, digest = hash_object(root, path)
    return PinnedFile(path=path, size=size, sha256=digest)


def _lay_out_builtin(storage: Storage, name: str, builtin: str) -> Pin:
    """Write a builtin source as Dolma-format zstd JSONL below `sources/` and pin it.

    The digest comes from the uncompressed lines, so that neither the zstd version nor the machine enters it.
    """
    if builtin not in BUILTIN:
        raise SourceError(
            f"sources.{name}.builtin: {builtin!r} is unknown; known: {', '.join(sorted(BUILTIN))}"
        )
    parts = list(_parts(builtin))
    paths = [f"data/{name}/part-{number:05d}.jsonl.zst" for number in range(len(parts))]
    digest = content_digest(
        [(path, len(part), _sha256(part)) for path, part in zip(paths, parts, strict=True)]
    )
    location = f"sources/{name}-{digest[:12]}"
    files = []
    for path, part in zip(paths, parts, strict=True):
        import pyarrow  # slow to import, and most of who reads a pin never packs a source

        data = pyarrow.compress(part, codec="zstd", asbytes=True)
        storage.write_bytes(f"{location}/{path}", data)
        files.append(PinnedFile(path=path, size=len(data), sha256=_sha256(data), content_size=len(part)))
    return Pin(source=name, location=location, builtin=True, files=tuple(files), digest=digest)


def _parts(builtin: str) -> Iterator[bytes]:
    """JSON lines of a builtin source, cut into parts of about PART_BYTES at document boundaries."""
    lines, size = [], 0
    for document in BUILTIN[builtin]():
        line = (json.dumps(document, ensure_ascii=False) + "\n").encode()
        lines.append(line)
        size += len(line)
        if size >= PART_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
