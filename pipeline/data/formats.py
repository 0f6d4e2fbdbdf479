"""What a file is, by the end of its name and by its first bytes.

| format | ends in | codecs |
|---|---|---|
| JSON lines | `.jsonl`, `.json`, `.ndjson`, `.jsonlines` | none, `.gz`, `.zst` or `.zstd`, `.bz2`, `.xz` |
| parquet | `.parquet` | none of its own |
| token file | `.npy`, its boundaries `.csv.gz`; `.bin` with `.idx`; `.ds` with `.ds.index` | |

Upper and lower case are the same. Any other name is not read: a file of another kind taken for JSON lines is a file of
unreadable lines, and a small one would vanish below the tolerance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINES = (".jsonl", ".json", ".ndjson", ".jsonlines")
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}
KNOWN = ".jsonl, .json, .ndjson (plain or with .gz, .zst, .bz2, .xz), .parquet, token files (.npy with .csv.gz, .bin with .idx, .ds with .ds.index)"
MAGIC_BYTES = 8

_FORMATS = (
    dict.fromkeys(LINES, "lines") | {".parquet": "parquet"} | dict.fromkeys((".npy", ".bin", ".ds"), "tokens")
)
_BOUNDARIES = (".csv.gz", ".idx", ".ds.index", ".ds.metadata")
"""Beside a token file (pipeline.data.token_files)."""
_MAGIC = (
    ("gzip", re.compile(rb"\x1f\x8b")),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)),  # a frame, or one to skip
    ("bzip2", re.compile(rb"BZh[1-9]")),
    ("xz", re.compile(rb"\xfd7zXZ\x00")),
    ("parquet", re.compile(rb"PAR1")),
    ("numpy.save", re.compile(rb"\x93NUMPY")),
    ("zip", re.compile(rb"PK\x03\x04")),
    ("Arrow", re.compile(rb"ARROW1|\xff\xff\xff\xff")),
)


@dataclass(frozen=True)
class Format:
    """A file as its name says it is."""

    kind: str
    """`lines`, `parquet`, `tokens` or `boundaries`."""
    codec: str
    """`gzip`, `zstd`, `bzip2`, `xz`, or empty."""
    stem: str
    """The path without these endings: of two files with one stem, one is a copy of the other."""


def format_of(path: str) -> Format | None:
    """The format that a name stands for; None for a name that stands for none."""
    lower = path.lower()
    for suffix in _BOUNDARIES:
        if lower.endswith(suffix):
            return Format("boundaries", "gzip" if suffix == ".csv.gz" else "", path[: -len(suffix)])
    codec = next((suffix for suffix in CODECS if lower.endswith(suffix)), "")
    inner = lower.removesuffix(codec)
    for suffix, kind in _FORMATS.items():
        if inner.endswith(suffix) and (kind == "lines" or not codec):
            return Format(kind, CODECS.get(codec, ""), path[: len(inner) - len(suffix)])
    return None


def contradiction(path: str, head: bytes) -> str | None:
    """What the first bytes of a file show, where that is not what its name says; None where the two agree.

    An empty file contradicts nothing here: readers know which formats cannot be empty.
    """
    known = format_of(path)
    if known is None or known.kind in ("tokens", "boundaries") or not head:
        return None
    shown = next((name for name, magic in _MAGIC if magic.match(head)), "")
    if not shown and head.startswith(b"version "):
        shown = "a Git LFS pointer"
    said = known.codec or ("parquet" if known.kind == "parquet" else "")
    if shown == said:
        return None
    return (
        f"named {said or 'plain JSON lines'}, but begins as {shown or 'something else'} ({head[:4].hex(' ')})"
    )
