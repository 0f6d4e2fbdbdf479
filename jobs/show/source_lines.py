"""The sources of a plan: place, files, bytes, digest, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.plan.recipe_sources import left_out_lines
from pipeline.data.pins import Look
from pipeline.quantities import byte_size

LEFT_OUT = 100
"""Names of a source in the record; their number is always there."""


def source_records(sources: Mapping[str, Look]) -> dict[str, dict[str, Any]]:
    """`{place, files, bytes, digest, left_out, left_out_count, note}` by name; null where nothing is known yet."""
    return {
        name: {
            "place": seen.place,
            "files": seen.files,
            "bytes": seen.bytes,
            "digest": seen.pin.digest if seen.pin else None,
            "left_out": [
                {"path": _shown(path), "reason": reason} for path, reason in seen.left_out[:LEFT_OUT]
            ],
            "left_out_count": len(seen.left_out),
            "note": seen.note,
        }
        for name, seen in sources.items()
    }


def source_lines(sources: Mapping[str, Look]) -> list[str]:
    """The same for people: a line a source, then what it leaves out."""
    lines = []
    for name, seen in sources.items():
        parts = [seen.place]
        if seen.files is not None and seen.bytes is not None:
            parts.append(f"{seen.files:,} files, {byte_size(seen.bytes)}")
        if seen.pin is not None:
            parts.append(f"digest {seen.pin.digest[:12]}")
        parts.append(seen.note)
        lines.append(f"source {name}: {'; '.join(filter(None, parts))}")
        lines += left_out_lines(name, seen.left_out)
    return lines


def _shown(path: str) -> str:
    """A name that any output can take: bytes that are no UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()
