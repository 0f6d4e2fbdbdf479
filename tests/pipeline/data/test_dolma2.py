"""The dolma2 tokenizer, the published file as `ncp assets` fetches it, against what is published about it."""

from __future__ import annotations

import itertools
import random

import pytest

from jobs.assets import find_asset
from pipeline.data import tokenizer as tokenizer_module
from pipeline.data.builtin import stdlib_code
from pipeline.data.tokenizer import Tokenizer

SHA256 = "3ca996cca8afea58b34e95c353e859333592642a5e51d695d7a6dbbaf692dfe9"
PATH = find_asset("dolma2")
pytestmark = pytest.mark.skipif(
    PATH is None, reason="needs the dolma2 asset (ncp assets fetch dolma2, 145 MB)"
)


@pytest.fixture(scope="module")
def dolma2() -> Tokenizer:
    assert PATH is not None
    return Tokenizer(PATH.read_bytes())


def test_it_is_the_published_file(dolma2):
    assert dolma2.sha256 == SHA256
    assert (dolma2.vocab_size, dolma2.eos_id, dolma2.pad_id) == (100_278, 100_257, 100_277)


def test_it_merges_like_cl100k(dolma2):
    """Ids from tiktoken's own documentation and tests of cl100k_base."""
    assert dolma2.encode("hello world") == [15339, 1917]
    assert dolma2.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
    assert dolma2.encode("rer") == [38149]
    assert dolma2.encode("'rer") == [2351, 81]
    assert dolma2.encode("today\n ") == [31213, 198, 220]


def test_special_tokens_are_text_unless_kept(dolma2):
    assert dolma2.encode("a<|endoftext|>b", "keep") == [64, 100_257, 65]
    assert dolma2.encode("x<|fim_prefix|>y<|fim_suffix|><|fim_middle|>", "keep")[1::2][:2] == [
        100_258,
        100_260,
    ]
    as_text = dolma2.encode("a<|endoftext|>b")
    assert max(as_text) < 100_256 and dolma2.decode(as_text) == "a<|endoftext|>b"


def test_placeholders_and_extra_ids_are_single_ids_in_both_policies_because_they_are_not_special(dolma2):
    for policy in ("text", "keep"):
        assert len(dolma2.encode("|||EMAIL_ADDRESS|||", policy)) == 1


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_long_texts_cut_into_pieces_give_the_ids_of_the_whole(dolma2, monkeypatch, size):
    code = itertools.islice(stdlib_code(), 10)
    text = "\n\n".join(document["text"] for document in code)[:60_000]
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", 10**9)
    whole = dolma2.encode(text)
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", size)
    assert dolma2.encode(text) == whole


def test_cuts_are_safe_in_hostile_texts(dolma2, monkeypatch):
    randomness = random.Random(1)
    alphabet = "ab1 \n\t.,'\u00e9\u4f60<|>_-\r\u00a0\u0301\u00b2\u2167sS"
    for _ in range(2000):
        text = "".join(randomness.choice(alphabet) for _ in range(randomness.randint(5, 60)))
        monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", 10**9)
        whole = dolma2.encode(text)
        monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", randomness.choice((1, 3, 7)))
        assert dolma2.encode(text) == whole, repr(text)
