"""A builtin source as Dolma-format files in storage, so that from then on it is a source like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from pipeline.data.builtin import BUILTIN
from pipeline.data.content_tag import content_digest
from pipeline.data.errors import SourceError
from pipeline.data.objects import PinnedFile
from pipeline.storage import Storage

PART_BYTES = 1 << 20
"""Uncompressed bytes of a builtin part: small, so that even the demo has several units of staging work."""


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """Where the parts lie, and what they are."""

    location: str
    """Key prefix in storage."""
    files: tuple[PinnedFile, ...]
    digest: str


def lay_out(storage: Storage, name: str, builtin: str) -> LaidOut:
    """Write a builtin source as zstd JSONL below `sources/`.

    The digest comes from the uncompressed lines, so that neither the zstd version nor the machine enters it. Raises
    SourceError for an unknown builtin.
    """
    if builtin not in BUILTIN:
        raise SourceError(
            f"sources.{name}.builtin: {builtin!r} is unknown; known: {', '.join(sorted(BUILTIN))}"
        )
    parts = list(_parts(builtin))
    paths = [f"data/{name}/part-{number:05d}.jsonl.zst" for number in range(len(parts))]
    digest = content_digest(
        [(path, len(part), sha256(part).hexdigest()) for path, part in zip(paths, parts, strict=True)]
    )
    location = f"sources/{name}-{digest[:12]}"
    files = []
    for path, part in zip(paths, parts, strict=True):
        import pyarrow  # slow to import, and most of who reads a pin never packs a source

        data = pyarrow.compress(part, codec="zstd", asbytes=True)
        storage.write_bytes(f"{location}/{path}", data)
        files.append(
            PinnedFile(path=path, size=len(data), sha256=sha256(data).hexdigest(), content_size=len(part))
        )
    return LaidOut(location=location, files=tuple(files), digest=digest)


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
