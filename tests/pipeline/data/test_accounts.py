"""What a data step did, as one line."""

from __future__ import annotations

import pytest

from pipeline.data.accounts import account_line
from pipeline.data.counters import Counters

STAGED = Counters(
    documents_read=20_000,
    documents_written=19_000,
    documents_held_out=20,
    skipped={"bad_text": 900, "empty": 80},
    invalid_utf8=2,
    tokens_written=4_000_000,
    bytes_written=16_400_000,
    bytes_held_out=9_900,
)


def test_staging_says_what_was_read_written_held_out_and_skipped_by_reason() -> None:
    assert account_line({"bytes_read": 5_000_000_000, "counters": STAGED.to_json()}) == (
        "read 20,000 documents (5.0 GB); wrote 19,000 documents (16.4 MB), 4,000,000 tokens; held out 20 documents (9.9 kB); "
        "skipped 980 (4.9 %): bad_text 900, empty 80; mended 2: invalid_utf8 2"
    )


def test_cleaning_says_what_each_filter_took_and_warns_of_more_than_half() -> None:
    counts = {
        "documents_read": 10,
        "skipped": {},
        "removed": {"gopher_quality:short": 4},
        "duplicates": 2,
        "documents": 4,
    }
    pin = {"files": [{"path": "a", "content_size": 700}, {"path": "b", "content_size": 300}]}
    assert account_line({"bytes_read": 12, "counts": counts, "pin": pin}) == (
        "read 10 documents (12 B); wrote 4 documents (1.0 kB); skipped 0; cleaned 6 (60.0 %): gopher_quality:short 4, "
        "duplicates 2 - WARNING: more than half"
    )


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        ({"tokenizer": "x", "vocab_size": 9}, ""),
        (
            {"counters": Counters(documents_read=1, documents_written=1).to_json()},
            "read 1 document; wrote 1 document (0 B)",
        ),
    ],
)
def test_steps_without_documents_and_older_receipts_are_read_as_they_are(receipt: dict, line: str) -> None:
    assert account_line(receipt).startswith(line) and (line or not account_line(receipt))
