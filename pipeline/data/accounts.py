"""What a data step did, as one line: the same at its end, in `ncp status` and in the report, from its receipt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.quantities import byte_size


def account_line(receipt: Mapping[str, Any]) -> str:
    """Documents and bytes read, written, held out, skipped by reason, cleaned by filter; "" for a step without documents.

    Bytes are text in UTF-8, but those read, which are the source's files as stored. Receipts of earlier versions lack some.
    """
    if "counters" in receipt:
        return _staged(receipt, receipt["counters"])
    if "counts" in receipt:
        return _cleaned(receipt, receipt["counts"])
    asked, there = receipt.get("vocab_size_asked", 0), receipt.get("vocab_size", 0)
    if there < asked:
        return f"{there:,} of {asked:,} entries: the text makes no more; raise tokenizer.train.max_bytes_per_source, or lower vocab_size"
    return ""


def _staged(receipt: Mapping[str, Any], counters: Mapping[str, Any]) -> str:
    parts = [
        _read(receipt, counters),
        f"wrote {_amount(counters['documents_written'], counters.get('bytes_written'))}, "
        f"{counters['tokens_written']:,} tokens",
        f"held out {_amount(counters['documents_held_out'], counters.get('bytes_held_out'))}",
        _by_reason("skipped", counters["skipped"], counters["documents_read"]),
    ]
    mended = {name: counters.get(name, 0) for name in ("invalid_utf8", "lone_surrogates", "forced_cuts")}
    parts.append(_by_reason("mended", mended, 0) if any(mended.values()) else "")
    return "; ".join(part for part in parts if part)


def _cleaned(receipt: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    read = counts["documents_read"]
    written = sum(file.get("content_size") or 0 for file in receipt.get("pin", {}).get("files", ()))
    parts = [
        _read(receipt, counts),
        f"wrote {_amount(counts['documents'], written or None)}",
        _by_reason("skipped", counts["skipped"], read),
        _by_reason("cleaned", {**counts["removed"], "duplicates": counts["duplicates"]}, read),
    ]
    return "; ".join(parts)


def _read(receipt: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    return f"read {_amount(counts['documents_read'], receipt.get('bytes_read'))}"


def _amount(documents: int, size: int | None) -> str:
    noun = "document" if documents == 1 else "documents"
    return f"{documents:,} {noun}" + ("" if size is None else f" ({byte_size(size)})")


def _by_reason(what: str, counts: Mapping[str, int], of: int) -> str:
    """`skipped 12 (3.0 %): bad_text 10, empty 2`; `skipped 0`. More than half is a warning."""
    total = sum(counts.values())
    if not total:
        return f"{what} 0"
    share = f" ({100 * total / of:.1f} %)" if of else ""
    reasons = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    warning = " - WARNING: more than half" if of and total > of / 2 else ""
    return f"{what} {total:,}{share}: {reasons}{warning}"
