"""Text that is streamed is the text that would be decoded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from jobs.generate import text_pieces


def _bytes() -> Tokenizer:
    """One token a byte: every character beyond ASCII is several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _words() -> Tokenizer:
    """As SentencePiece makes them: the space before a word is in its token, and the first one's is dropped."""
    words = ["\u2581the", "\u2581cat", "\u2581", "s", "at", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@pytest.mark.parametrize("made", [_bytes, _words])
@given(data=st.data())
def test_the_pieces_are_the_whole_text(made: Callable[[], Tokenizer], data: st.DataObject) -> None:
    tokenizer = made()

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    if made is _bytes:
        ids = tokenizer.encode(data.draw(st.text(max_size=30))).ids
    else:
        ids = data.draw(st.lists(st.integers(0, 4), max_size=30))
    assert "".join(text_pieces(ids, decode)) == decode(ids)


def test_a_long_text_is_decoded_a_piece_at_a_time() -> None:
    tokenizer, longest = _bytes(), 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer.decode(list(ids))

    text = "\u00e9\u20ac\U0001f600 plain " * 50
    assert "".join(text_pieces(tokenizer.encode(text).ids, decode)) == text
    assert longest <= 8
