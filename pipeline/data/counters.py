"""Accounting of documents: nothing disappears uncounted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

UNREADABLE = ("bad_json", "not_an_object", "line_too_long", "bad_text")
"""Reasons for which a line goes to quarantine and counts against the tolerance."""
SKIPPED = (*UNREADABLE, "empty", "removed")
"""Every reason for which a document that was read is not written."""


@dataclass(kw_only=True)
class Counters:
    """What became of the documents of a group or a source.

    `documents_read` counts every non-blank line or row, readable or not; `documents_read = documents_written +
    documents_held_out + sum(skipped)` is checked wherever counters are closed.
    """

    documents_read: int = 0
    documents_written: int = 0
    documents_held_out: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    blank_lines: int = 0
    invalid_utf8: int = 0
    """Documents in which invalid bytes became U+FFFD."""
    lone_surrogates: int = 0
    """Documents in which lone surrogates became U+FFFD."""
    forced_cuts: int = 0
    """Places at which a text without any word boundary for megabytes was cut to be tokenized in bounded memory."""
    tokens_written: int = 0
    tokens_held_out: int = 0
    bytes_written: int = 0
    """UTF-8 bytes of the documents written, for bits per byte."""
    bytes_held_out: int = 0

    def skip(self, reason: str) -> None:
        if reason not in SKIPPED:
            raise KeyError(reason)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def add(self, other: Counters) -> None:
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count

    @property
    def unreadable(self) -> int:
        return sum(self.skipped.get(reason, 0) for reason in UNREADABLE)

    def check(self, where: str) -> None:
        """Raise AssertionError if a document went missing: a bug, never the user's fault."""
        accounted = self.documents_written + self.documents_held_out + sum(self.skipped.values())
        if accounted != self.documents_read:
            raise AssertionError(
                f"{where}: {self.documents_read} documents read but {accounted} accounted for: {self}"
            )

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "skipped": dict(sorted(self.skipped.items()))}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Counters:
        return Counters(**{**record, "skipped": dict(record["skipped"])})


_NUMBERS = tuple(item.name for item in dataclasses.fields(Counters) if item.name != "skipped")
