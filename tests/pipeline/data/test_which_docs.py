from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.heldout import heldout_documents
from pipeline.data.loader import WindowLoader
from pipeline.data.shards import read_documents
from pipeline.data.which_docs import documents_of_step, steps_of_document

T, G, STEPS = 256, 8, 400


@pytest.fixture(scope="module")
def loader(stdlib_storage, code, prose) -> WindowLoader:
    return WindowLoader(
        storage=stdlib_storage,
        outputs={"code": code.output, "prose": prose.output},
        weights={"code": 0.5, "prose": 0.5},
        block=16,
        seed=11,
        sequence_length=T,
        global_batch_tokens=T * G,
    )


@pytest.fixture(scope="module")
def documents(stdlib_storage, code, prose) -> dict[tuple[str, str], list[int]]:
    found = {}
    for manifest in (code, prose):
        for entry in manifest.shards:
            batch = read_documents(stdlib_storage, manifest.output, entry)
            for key, ids in zip(batch.column(1).to_pylist(), batch.column(0), strict=True):
                found[manifest.source, key] = ids.values.to_numpy()
    return found


def test_the_documents_of_a_step_are_the_tokens_of_its_batch(loader, stdlib_storage, documents):
    for step in (0, 7, STEPS - 1):
        batch = loader.tokens_at(np.arange(step * G, (step + 1) * G))
        parts: dict[int, list] = {}
        for seen in documents_of_step(loader, stdlib_storage, step):
            ids = documents[seen.source, seen.doc_key]
            assert seen.document_tokens == len(ids)
            parts.setdefault(seen.position, []).append(ids[seen.first_token : seen.first_token + seen.tokens])
        assert [np.concatenate(parts[step * G + row]).tolist() for row in range(G)] == batch.tolist()


def test_the_steps_of_a_document_are_those_that_name_it(loader, stdlib_storage):
    named: dict[tuple[str, str], set[int]] = {}
    for step in range(60):
        for seen in documents_of_step(loader, stdlib_storage, step):
            named.setdefault((seen.source, seen.doc_key), set()).add(step)
    for (source, key), steps in list(named.items())[::37]:
        assert steps_of_document(loader, stdlib_storage, source, key, 60) == sorted(steps)


def test_a_source_drawn_twice_over_shows_its_documents_twice(loader, stdlib_storage, prose):
    batch = read_documents(stdlib_storage, prose.output, prose.shards[0])
    once = prose.windows(T) * 2 // G
    steps = steps_of_document(loader, stdlib_storage, "prose", batch.column(1)[5].as_py(), 2 * once)
    assert len(steps) >= 2 and steps[0] <= once < steps[-1] + 1


@pytest.mark.parametrize(
    ("source", "key", "message"),
    [
        ("math", "a:1", r"source 'math' is not in the mixture; it has code, prose"),
        ("code", "data/code/part-00000.jsonl.zst:99999", "skipped, or there is no such document"),
        ("code", "nonsense", r"expected '<path relative to the source>:<line>'"),
    ],
)
def test_what_is_not_there_is_said_to_be_missing(loader, stdlib_storage, source, key, message):
    with pytest.raises(ValueError, match=message):
        steps_of_document(loader, stdlib_storage, source, key, STEPS)


def test_a_held_out_document_was_seen_by_no_step_and_the_answer_says_why(loader, stdlib_storage, code):
    held = next(iter(heldout_documents(stdlib_storage, code.output)))
    with pytest.raises(ValueError, match="held out for evaluation"):
        steps_of_document(loader, stdlib_storage, "code", held.doc_key, STEPS)
