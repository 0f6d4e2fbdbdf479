from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pydoc_data.topics import topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import tokenizer as tokenizer_module
from pipeline.data.builtin import stdlib_code
from pipeline.data.tokenizer import Tokenizer, train_bpe

SCRIPT = """
import hashlib, os, sys
os.environ["TOKENIZERS_PARALLELISM"] = sys.argv[1]
from pydoc_data.topics import topics
from pipeline.data.tokenizer import train_bpe
print(hashlib.sha256(train_bpe(topics.values(), 1024)).hexdigest())
"""


def test_training_gives_the_same_bytes_in_any_process_with_any_number_of_threads():
    here = hashlib.sha256(train_bpe(topics.values(), 1024)).hexdigest()
    for parallel in ("false", "true"):
        run = [sys.executable, "-c", SCRIPT, parallel]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == here


def test_special_tokens_come_first_and_the_size_is_the_one_asked_for(tokenizer):
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size) == (0, 1, 2048)


@settings(max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_literal_special_token_is_text_unless_the_source_keeps_it(tokenizer):
    text = "a<|endoftext|>b"
    as_text = tokenizer.encode(text)
    assert tokenizer.eos_id not in as_text and tokenizer.decode(as_text) == text
    assert tokenizer.encode(text, "keep").count(tokenizer.eos_id) == 1
    assert tokenizer.encode(text) == as_text, "the policy of one call must not stick"
    with pytest.raises(ValueError, match="special_tokens: 'drop'"):
        tokenizer.encode(text, "drop")


def test_a_batch_is_the_texts_one_by_one(tokenizer, prose_texts):
    texts = [*prose_texts[:50], "", "x"]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in texts]
    assert all(ids.dtype == np.uint32 for ids in batch)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_long_texts_cut_into_pieces_give_the_ids_of_the_whole(tokenizer, monkeypatch, size):
    text = (
        "\n\n".join(document["text"] for document in stdlib_code())[:400_000]
        + " Gr\u00fc\u00dfe \u4f60\u597d 12 ab\n\n"
    )
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", 10**9)
    whole = tokenizer.encode(text)
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", size)
    assert tokenizer.encode(text) == whole
    assert tokenizer.forced_cuts == 0


@given(text=st.text(st.sampled_from("ab1 \n\t.,'\u00e9\u4f60<|>_-"), max_size=200))
def test_cuts_are_safe_in_any_text(tokenizer, text):
    before = tokenizer_module.PIECE_CHARS
    whole = tokenizer.encode(text)
    tokenizer_module.PIECE_CHARS = 3
    try:
        assert tokenizer.encode(text) == whole
    finally:
        tokenizer_module.PIECE_CHARS = before


def test_a_text_without_any_boundary_is_cut_in_bounded_pieces_and_counted(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", 100)
    monkeypatch.setattr(tokenizer_module, "MAX_PIECE_CHARS", 1000)
    copy = pickle.loads(pickle.dumps(tokenizer))
    text = "x" * 5500
    assert copy.decode(copy.encode(text)) == text
    assert copy.forced_cuts == 5


def test_pickles_as_its_file(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.sha256 == tokenizer.sha256 and copy.encode("import os") == tokenizer.encode("import os")


def test_what_is_no_tokenizer_is_said_to_be_none():
    with pytest.raises(ValueError, match="not a tokenizer"):
        Tokenizer(b"{}")


@pytest.mark.parametrize(
    ("texts", "size", "message"), [(["a"], 200, "vocab_size: 200"), ([], 300, "no text")]
)
def test_training_on_nothing_or_to_nothing_is_refused(texts, size, message):
    with pytest.raises(ValueError, match=message):
        train_bpe(texts, size)
