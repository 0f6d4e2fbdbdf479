from __future__ import annotations

import pytest

from pipeline.data.heldout import heldout_documents
from pipeline.data.heldout_rule import is_held_out
from pipeline.data.shards import read_documents
from pipeline.data.training_text import training_texts


def test_the_share_is_about_the_fraction_and_nested_in_a_larger_one(prose_texts):
    held = {
        fraction: {text for text in prose_texts if is_held_out(text, fraction)}
        for fraction in (0.02, 0.1, 1.0)
    }
    assert held[0.02] < held[0.1] < held[1.0] == set(prose_texts)
    assert 0.07 < len(held[0.1]) / len(set(prose_texts)) < 0.13
    assert not any(is_held_out(text, 0.0) for text in prose_texts)


@pytest.mark.parametrize("copy", ["Some Text\n\nHere", "  some text here  ", "SOME\ttext\r\nhere"])
def test_copies_that_differ_in_layout_or_case_go_together(copy):
    """Over fractions from 0 to 1 the two texts cross the threshold together."""
    steps = [i / 200 for i in range(201)]
    assert [is_held_out(copy, step) for step in steps] == [
        is_held_out("some text here", step) for step in steps
    ]


def test_an_upsampled_duplicate_never_leaks_into_training(stage_files, store, lines):
    texts = [f"document number {i} about something" for i in range(200)]
    manifest = stage_files(
        {"a.jsonl": lines(*texts), "b.jsonl": lines(*texts)}, heldout_fraction=0.1, group_bytes=1
    )
    held = [document.input_ids.tolist() for document in heldout_documents(store, manifest.output)]
    trained = [
        row
        for entry in manifest.shards
        for row in read_documents(store, manifest.output, entry).column(0).to_pylist()
    ]
    assert len(held) == 2 * len({tuple(ids) for ids in held}) > 0
    assert not {tuple(ids) for ids in held} & {tuple(ids) for ids in trained}
    assert len(held) + len(trained) == 400


def test_held_out_documents_come_in_order_with_their_bytes_and_stop_at_the_limit(
    stdlib_storage, prose, tokenizer
):
    documents = list(heldout_documents(stdlib_storage, prose.output))
    assert len(documents) == prose.counters.documents_held_out
    assert sum(document.n_bytes for document in documents) == prose.counters.bytes_held_out
    for document in documents:
        assert document.source == "prose" and document.input_ids[-1] == tokenizer.eos_id
        assert len(tokenizer.decode(document.input_ids[:-1]).encode()) == document.n_bytes
    some = list(heldout_documents(stdlib_storage, prose.output, max_tokens=8000))
    assert [document.doc_key for document in some] == [
        document.doc_key for document in documents[: len(some)]
    ]
    assert 0 < sum(len(document.input_ids) for document in some) <= 8000
    assert len(list(heldout_documents(stdlib_storage, prose.output, max_tokens=1))) == 1


def test_the_tokenizer_is_trained_on_the_first_bytes_and_on_nothing_held_out(
    stdlib_storage, prose_pin, prose_texts, small_data
):
    texts = list(training_texts(stdlib_storage, prose_pin, small_data, 100_000))
    assert (
        texts
        == [text for text in prose_texts if not is_held_out(text, small_data.heldout_fraction)][: len(texts)]
    )
    size = sum(len(text.encode()) for text in texts)
    assert size >= 100_000 > size - len(texts[-1].encode())
