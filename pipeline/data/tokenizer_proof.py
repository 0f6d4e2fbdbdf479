"""What a tokenizer.json must prove before its ids are believed: the same text gives the same ids, and no text is lost.

A byte-level vocabulary without one of the byte entries drops that byte from every document, one without an alphabet
drops whole scripts, and `dropout` gives other ids in every process; the encoder reports none of it.
"""

from __future__ import annotations

import functools
import random
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from pipeline.data.errors import TokenizerError

_RANDOM_TEXTS = 64
_SURROGATES = range(0xD800, 0xE000)
_BLANK_SIGN = "\u2581"
"""SentencePiece's sign for a blank: a literal one comes back as a blank, by its design."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SHORT_EACH = r"(?i:[sdmt]|ll|ve|re)"
CUTTABLE_PATTERNS = frozenset(
    {
        _GPT2,
        *(
            f"{short}|{_LETTERS}|{digits}|{_REST}"
            for short in (_SHORT, f"'{_SHORT_EACH}", r"'(?i:[sdmt]|ll|ve|re)")
            for digits in (r"\p{N}", r"\p{N}{1,3}")
        ),
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    }
)
"""Patterns (GPT-2's, cl100k's with its descendants) in which no pre-token holds a letter or digit followed by a blank, and
which never look behind a blank: cut there, both halves split as the whole does."""
_LETTER_THEN_BLANK = re.compile(r"[^\W_][ \n]")


def check_repeatable(config: Mapping[str, Any]) -> None:
    """Raise TokenizerError for a model that draws at random."""
    model = config.get("model") or {}
    for name in ("dropout", "alpha", "nbest_size"):
        if model.get(name):
            raise TokenizerError(
                f"tokenizer: model.{name} is {model[name]}, so the same text gives other ids each time; set it to null"
            )


def prove_round_trip(tokenizer: RustTokenizer) -> None:
    """Encode and decode every byte that UTF-8 text can hold, and random text. Raises TokenizerError naming what is lost.

    Equal means equal in canonical form (NFC normalizers lose no text), but for one blank that SentencePiece puts in front.
    """
    tokenizer.encode_special_tokens = True
    texts = _probes()
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    decoded = tokenizer.decode_batch([one.ids for one in encoded], skip_special_tokens=False)
    for text, back in zip(texts, decoded, strict=True):
        if not _same(text, back):
            lost = text[1:-1] if len(text) == 3 else text
            raise TokenizerError(
                f"tokenizer: {lost!r} (bytes {lost.encode()[:12].hex(' ')}) between letters comes back as {back!r}: its "
                "entries do not cover all text, so documents would change silently; use one with all 256 bytes"
            )


def cuts_are_exact(config: Mapping[str, Any]) -> bool:
    """Whether a text cut between a letter or digit and a blank gives the ids of the whole: proved for known patterns only."""
    model = config.get("model") or {}
    if config.get("normalizer") or model.get("type", "BPE") != "BPE":
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    for token in config.get("added_tokens", []):
        swallows = any(token.get(name) for name in ("lstrip", "rstrip", "single_word"))
        if swallows or _LETTER_THEN_BLANK.search(token["content"]):
            return False
    return _is_known_split(config.get("pre_tokenizer") or {})


def _is_known_split(pre: Mapping[str, Any]) -> bool:
    parts = pre.get("pretokenizers", [pre])
    levels = [part for part in parts if part.get("type") == "ByteLevel"]
    if len(levels) != 1 or parts[-1] is not levels[0] or levels[0].get("add_prefix_space", True):
        return False
    own_pattern = levels[0].get("use_regex", True)
    splits = parts[:-1]
    if not splits:
        return own_pattern
    if len(splits) != 1 or own_pattern or splits[0].get("type") != "Split":
        return False
    split = splits[0]
    known = split.get("pattern", {}).get("Regex") in CUTTABLE_PATTERNS
    kept = (split.get("behavior"), bool(split.get("invert")))
    return known and kept in (
        ("Isolated", False),
        ("Removed", True),
    )  # the patterns match every character, so both are one


def _same(text: str, back: str) -> bool:
    text, back = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", back)
    return back == text or back == f" {text}"


@functools.cache
def _probes() -> tuple[str, ...]:
    """Texts that together hold every byte of UTF-8, each character alone between letters, and random texts."""
    points = [
        *range(0x80),
        *range(0x80, 0xC0),  # every continuation byte
        *range(0xC0, 0x800, 0x40),  # lead bytes of two
        *(point for point in range(0x800, 0x10000, 0x400) if point not in _SURROGATES),
        *range(0x10000, 0x110000, 0x4000),
    ]
    draw = random.Random(0)
    texts = [f"a{chr(point)}b" for point in points if chr(point) != _BLANK_SIGN]
    texts += ["a  b", "a   b", "a\r\nb", "a\n\n b", "a\t\tb", "a \n b"]
    for _ in range(_RANDOM_TEXTS):
        drawn = (
            draw.choice((draw.randrange(0x80), draw.randrange(0x800), draw.randrange(0x110000)))
            for _ in range(24)
        )
        body = "".join(
            chr(point) for point in drawn if point not in _SURROGATES and point != ord(_BLANK_SIGN)
        )
        texts.append(f"a{body}b")
    return tuple(texts)
