"""What a source leaves out, in a few lines: files that lie beside its own and are not read."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5


def left_out_lines(source: str, left_out: Sequence[tuple[str, str]]) -> list[str]:
    """One line a reason, with the first names and the count of all."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in left_out:
        by_reason.setdefault(reason, []).append(path)
    lines = []
    for reason, paths in by_reason.items():
        shown = ", ".join(map(repr, paths[:SHOWN])) + (", ..." if len(paths) > SHOWN else "")
        count = f"{len(paths)} files" if len(paths) > 1 else "1 file"
        lines.append(f"{source}: {count} left out ({reason}): {shown}")
    return lines
