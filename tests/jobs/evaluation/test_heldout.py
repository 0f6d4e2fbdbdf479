"""Held-out losses: exact counts, the unigram bound, and agreement with the model's own loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from jobs.evaluation.heldout import (
    HeldoutError,
    code_length,
    evaluate_source,
    ratio_interval,
    select_documents,
    unigram_nats,
    windows,
)
from ncp_model import ModelSpec, NCPModel, build_model

EOS = 1


@dataclass(frozen=True)
class Document:
    doc_key: str
    input_ids: NDArray[np.uint32]
    n_bytes: int


def documents(count: int, *, length: int = 50, seed: int = 0) -> list[Document]:
    generator = np.random.default_rng(seed)
    made = []
    for index in range(count):
        ids = generator.integers(2, 512, length + index, dtype=np.uint32)
        made.append(Document(f"part:{index}", np.append(ids, np.uint32(EOS)), 3 * len(ids)))
    return made


@pytest.fixture(scope="module")
def model() -> NCPModel:
    torch.set_num_threads(1)
    return build_model(ModelSpec.preset("tiny"), seed=1)


@given(
    total=st.integers(2, 300),
    length=st.integers(1, 40),
    batch=st.integers(1, 5),
)
def test_every_token_is_predicted_exactly_once_from_its_predecessor(
    total: int, length: int, batch: int
) -> None:
    stream = np.arange(total)
    seen: list[int] = []
    for start, inputs, targets in windows(stream, length, batch):
        assert inputs.shape == targets.shape and inputs.shape[1] <= length and inputs.shape[0] <= batch
        np.testing.assert_array_equal(targets, inputs + 1)
        assert start == len(seen)
        seen.extend(targets.flatten().tolist())
    assert seen == list(range(1, total))


def test_the_unigram_of_a_uniform_stream_costs_the_logarithm_of_the_vocabulary() -> None:
    vocabulary, repeats, size = 64, 5, 200
    tokens = np.tile(np.arange(vocabulary), repeats)
    result = code_length(np.array([unigram_nats(tokens).sum()]), np.array([len(tokens)]), np.array([size]))
    assert result.nats_per_token == pytest.approx(math.log(vocabulary))
    assert result.bits_per_byte == pytest.approx(math.log2(vocabulary) * len(tokens) / size)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    other=st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_no_unigram_model_is_better_than_the_reported_one(counts: list[int], other: list[float]) -> None:
    tokens = np.repeat(np.arange(len(counts)), counts)
    probabilities = np.array(other[: len(counts)]) / sum(other[: len(counts)])
    assert unigram_nats(tokens).sum() <= -np.log(probabilities)[tokens].sum() + 1e-9


def test_the_loss_is_the_models_own_over_the_same_windows(model: NCPModel) -> None:
    docs = documents(5)
    result = evaluate_source(model, docs, eos_id=EOS, sequence_length=32)
    stream = np.concatenate([[EOS], *(doc.input_ids for doc in docs)]).astype(np.int64)
    ntp = ncp = pairs = vq = chunks = zero = 0.0
    for _, inputs, targets in windows(stream, 32, 1):
        with torch.inference_mode():
            out = model(torch.from_numpy(inputs.copy()), labels=torch.from_numpy(targets.copy()))
            out_zero = model(
                torch.from_numpy(inputs.copy()), labels=torch.from_numpy(targets.copy()), zero_concept=True
            )
        ntp, ncp, vq, zero = (
            ntp + float(out.ntp),
            ncp + float(out.ncp),
            vq + float(out.vq),
            zero + float(out_zero.ntp),
        )
        pairs, chunks = pairs + float(out.counts.ncp), chunks + float(out.counts.vq)
    assert result.tokens == len(stream) - 1 and result.bytes == sum(doc.n_bytes for doc in docs)
    assert result.model.nats_per_token == pytest.approx(ntp / result.tokens, rel=1e-5)
    assert result.model.bits_per_byte == pytest.approx(ntp / math.log(2) / result.bytes, rel=1e-5)
    assert result.zero_concept is not None and result.concept is not None
    assert result.zero_concept.nats_per_token == pytest.approx(zero / result.tokens, rel=1e-5)
    assert result.concept.ncp_loss == pytest.approx(ncp / pairs, rel=1e-5)
    assert result.concept.vq_loss == pytest.approx(vq / chunks, rel=1e-5)
    assert result.concept.codebook_used + result.concept.codebook_dead == result.concept.codebook_entries


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_the_batch_size_does_not_change_the_result(model: NCPModel, batch_tokens: int) -> None:
    docs = documents(4)
    reference = evaluate_source(model, docs, eos_id=EOS, sequence_length=16)
    other = evaluate_source(model, docs, eos_id=EOS, sequence_length=16, batch_tokens=batch_tokens)
    assert other.model.nats_per_token == pytest.approx(reference.model.nats_per_token, rel=1e-6)
    assert other.unigram == reference.unigram and other.documents_sha256 == reference.documents_sha256


def test_a_model_without_concepts_has_no_concept_numbers() -> None:
    spec = ModelSpec.from_dict(
        {
            **ModelSpec.preset("tiny").to_dict(),
            "concept": {"enabled": False},
            "crc": {"enabled": False},
            "ncp": {"weight": 0.0},
            "vq": {"weight": 0.0},
        }
    )
    result = evaluate_source(build_model(spec), documents(2), eos_id=EOS, sequence_length=16)
    assert result.concept is None and result.zero_concept is None
    assert result.model.nats_per_token > 0


def test_text_shorter_than_one_chunk_is_measured_without_concepts(model: NCPModel) -> None:
    docs = [Document("a", np.array([5, EOS], dtype=np.uint32), 1)]
    result = evaluate_source(model, docs, eos_id=EOS, sequence_length=16)
    assert result.tokens == 2 and result.concept is None


def test_no_documents_is_an_error_that_names_the_fix(model: NCPModel) -> None:
    with pytest.raises(HeldoutError, match=r"raise data\.heldout_fraction"):
        evaluate_source(model, [], eos_id=EOS, sequence_length=16)


@given(budget=st.integers(1, 400), seed=st.integers(0, 3))
def test_selection_is_bounded_independent_of_order_and_nested(budget: int, seed: int) -> None:
    docs = documents(8, length=20)
    chosen = select_documents(docs, budget)
    shuffled = list(docs)
    np.random.default_rng(seed).shuffle(shuffled)  # type: ignore[arg-type]
    assert [doc.doc_key for doc in select_documents(shuffled, budget)] == [doc.doc_key for doc in chosen]
    assert chosen and (len(chosen) == 1 or sum(len(doc.input_ids) for doc in chosen) <= budget)
    more = [doc.doc_key for doc in select_documents(docs, budget + 30)]
    assert more[: len(chosen)] == [doc.doc_key for doc in chosen]


def test_the_interval_is_seeded_and_narrows_with_more_documents() -> None:
    generator = np.random.default_rng(0)
    widths = []
    for count in (20, 2000):
        bits, sizes = generator.normal(100, 20, count), np.full(count, 50.0)
        interval = ratio_interval(bits, sizes)
        assert interval == ratio_interval(bits, sizes)
        assert interval is not None and interval[0] < bits.sum() / sizes.sum() < interval[1]
        widths.append(interval[1] - interval[0])
    assert widths[1] < widths[0] / 5
    assert ratio_interval(np.array([1.0]), np.array([1.0])) is None
