"""Held-out text: the training losses on documents that were kept out of training, per source.

The documents of a source are laid end to end and cut into windows of the model's sequence length L, as in training,
with two differences that make the number exact. One EOS comes first, and consecutive windows share one token (input
`stream[i*L : i*L + L]`, targets one further), so every token of every document, its closing EOS included, is
predicted exactly once. The last window is shorter, never padded. Hence

    bits per byte = nats over all tokens / ln 2 / UTF-8 bytes of all documents

is the length of a real code for these documents: it compares across tokenizers, and with any text compressor.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from curriculum.errors import InputError
from jobs.evaluation.forward import model_device, token_nats
from jobs.evaluation.student_t import t_quantile
from ncp_model import ModelOutput, NCPModel
from ncp_model.metrics import CodebookUsage, NextConceptScore


class HeldoutDocument(Protocol):
    """One document kept out of training."""

    @property
    def doc_key(self) -> str: ...

    @property
    def input_ids(self) -> NDArray[np.uint32]:
        """Its tokens, EOS last."""
        ...

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of its text."""
        ...


class HeldoutError(InputError):
    """Held-out text that cannot be measured; names the source and the fix."""


@dataclass(frozen=True, kw_only=True)
class CodeLength:
    """A text's length under a model."""

    nats_per_token: float
    bits_per_byte: float
    bits_per_byte_interval: tuple[float, float] | None = None
    """95 %, over documents (`ratio_interval`); None for fewer than two documents."""


@dataclass(frozen=True, kw_only=True)
class ConceptQuality:
    """How well concepts are predicted and coded; absent for a model without a Concept Module."""

    ncp_loss: float
    """Mean over predicted concepts of the squared error per element."""
    ncp_r2: float
    """1 - error / variance of the concepts predicted: 0 is as good as their mean, below 0 is worse."""
    ncp_r2_copy: float
    """The same against predicting that the newest concept repeats."""
    vq_loss: float
    """Mean over chunks of the squared distance per element to the nearest codewords."""
    codebook_perplexity: float
    """exp(entropy) of the codes used, mean over segments: how many of a codebook's entries are in real use."""
    codebook_used: float
    """Entries chosen at least once, mean over segments."""
    codebook_dead: float
    """Entries never chosen, mean over segments."""
    codebook_entries: int


@dataclass(frozen=True, kw_only=True)
class SourceResult:
    """One source."""

    documents: int
    tokens: int
    bytes: int
    documents_sha256: str
    """Over keys and tokens of the documents measured, in order."""
    model: CodeLength
    concept: ConceptQuality | None
    zero_concept: CodeLength | None
    """The same with nothing injected into the decoder: what the predicted concepts are worth."""
    unigram: CodeLength
    """The best any unigram model can do on these very tokens: its probabilities are their own frequencies."""


def select_documents(documents: Iterable[HeldoutDocument], max_tokens: int) -> list[HeldoutDocument]:
    """Whole documents, at most `max_tokens` of them together (but at least one), ranked by a hash of their key.

    A sample spread over the whole source, whatever order it is read in, in memory bounded by `max_tokens`.
    """
    heap: list[tuple[int, str, HeldoutDocument]] = []
    total = 0
    for document in documents:
        rank = int.from_bytes(hashlib.sha256(document.doc_key.encode()).digest()[:8], "big")
        heapq.heappush(heap, (-rank, document.doc_key, document))
        total += len(document.input_ids)
        # Keep the shortest prefix of the ranking that fills the budget: what falls out of it can never come back.
        while len(heap) > 1 and total - len(heap[0][2].input_ids) >= max_tokens:
            total -= len(heapq.heappop(heap)[2].input_ids)
    if total > max_tokens and len(heap) > 1:
        heapq.heappop(heap)
    return [document for _, _, document in sorted(heap, key=lambda item: (-item[0], item[1]))]


def evaluate_source(
    model: NCPModel,
    documents: Sequence[HeldoutDocument],
    *,
    eos_id: int,
    sequence_length: int,
    batch_tokens: int = 8192,
    batch_logits: int = 1 << 26,
    progress: Callable[[int, int], None] | None = None,
) -> SourceResult:
    """Every number of one source; a model with a Concept Module is run twice, the second time without its concepts.

    A batch holds at most `batch_tokens` tokens and `batch_logits` logit elements, or one window. `progress` is called
    with (tokens predicted, tokens in all). The model is left in the mode it was found in. Raises HeldoutError when
    there is nothing to measure.
    """
    if not documents or not sum(document.n_bytes for document in documents):
        raise HeldoutError(
            "held-out text: no documents; raise data.heldout_fraction, or give the source more text"
        )
    lengths = np.array([len(document.input_ids) for document in documents])
    sizes = np.array([document.n_bytes for document in documents])
    stream = np.concatenate([[eos_id], *(document.input_ids for document in documents)]).astype(np.int64)
    spec = model.spec
    passes = (False, True) if spec.concept.enabled else (False,)
    batch = max(1, min(batch_tokens, batch_logits // spec.vocab_size) // sequence_length)
    nats = {zero: np.empty(len(stream) - 1) for zero in passes}
    concepts = _Concepts(model) if spec.concept.enabled else None
    training = model.training
    model.eval()
    try:
        for start, inputs, targets in windows(stream, sequence_length, batch):
            stop = start + inputs.size
            for zero in passes:
                nats[zero][start:stop] = _batch_nats(model, inputs, targets, zero, None if zero else concepts)
            if progress is not None:
                progress(stop, len(stream) - 1)
    finally:
        model.train(training)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    per_document = {zero: np.add.reduceat(values, starts) for zero, values in nats.items()}
    return SourceResult(
        documents=len(documents),
        tokens=int(lengths.sum()),
        bytes=int(sizes.sum()),
        documents_sha256=_documents_digest(documents),
        model=code_length(per_document[False], lengths, sizes),
        concept=concepts.quality() if concepts is not None else None,
        zero_concept=code_length(per_document[True], lengths, sizes) if True in per_document else None,
        unigram=code_length(np.add.reduceat(unigram_nats(stream[1:]), starts), lengths, sizes),
    )


def windows(
    stream: NDArray[np.int64], length: int, batch: int
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """(index of the first target, inputs [B, T], targets [B, T]): every token but the first is a target exactly once.

    Full windows of `length` come in batches of up to `batch`; what remains is one shorter window of its own.
    """
    full = (len(stream) - 1) // length
    for first in range(0, full, batch):
        count = min(batch, full - first)
        start, stop = first * length, (first + count) * length
        yield (
            start,
            stream[start:stop].reshape(count, length),
            stream[start + 1 : stop + 1].reshape(count, length),
        )
    start = full * length
    if start < len(stream) - 1:
        yield start, stream[None, start:-1], stream[None, start + 1 :]


def unigram_nats(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cost of every token under the frequencies of these very tokens (the maximum-likelihood unigram model)."""
    counts = np.bincount(tokens)
    return (math.log(len(tokens)) - np.log(np.maximum(counts, 1)))[tokens]


def code_length(nats: NDArray[np.float64], tokens: NDArray[np.int64], sizes: NDArray[np.int64]) -> CodeLength:
    """From each document's nats, tokens and bytes."""
    return CodeLength(
        nats_per_token=float(nats.sum() / tokens.sum()),
        bits_per_byte=float(nats.sum() / sizes.sum() / math.log(2)),
        bits_per_byte_interval=ratio_interval(nats / math.log(2), sizes.astype(np.float64)),
    )


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64]
) -> tuple[float, float] | None:
    """95 % interval of sum(numerators) / sum(denominators), documents being a sample of many.

    The jackknife's standard error with Student's t: with five documents a percentile bootstrap covers the truth 84 times
    in a hundred (tests/benchmarks/bench_coverage.py). None for fewer than two documents.
    """
    count = len(numerators)
    if count < 2:
        return None
    above, below = float(numerators.sum()), float(denominators.sum())
    without = (above - numerators) / np.maximum(below - denominators, 1e-300)
    spread = float(np.square(without - without.mean()).sum())
    half = t_quantile(count - 1) * math.sqrt(spread * (count - 1) / count)
    return above / below - half, above / below + half


@torch.inference_mode()
def _batch_nats(
    model: NCPModel,
    inputs: NDArray[np.int64],
    targets: NDArray[np.int64],
    zero_concept: bool,
    concepts: _Concepts | None,
) -> NDArray[np.float64]:
    """Nats of every target, flattened; adds the batch's concepts to `concepts`."""
    device = model_device(model)
    labels = torch.from_numpy(targets.copy()).to(device)
    output: ModelOutput = model(
        torch.from_numpy(inputs.copy()).to(device),
        labels=labels,
        zero_concept=zero_concept,
        return_logits=True,
    )
    assert output.logits is not None
    if concepts is not None and output.concept is not None:  # a last window shorter than a chunk has none
        concepts.update(output)
    return token_nats(output.logits, labels).flatten().double().cpu().numpy()


class _Concepts:
    """Sums over batches of what `ConceptQuality` reports."""

    def __init__(self, model: NCPModel) -> None:
        concept = model.spec.concept
        self.entries = concept.entries
        self.score = NextConceptScore()
        self.usage = CodebookUsage(concept.segments, concept.entries)
        self.sums = {"ncp": 0.0, "vq": 0.0}
        self.counts = {"ncp": 0.0, "vq": 0.0}

    def update(self, output: ModelOutput) -> None:
        self.score.update(output)
        self.usage.update(output)
        for name in self.sums:
            self.sums[name] += float(getattr(output, name))
            self.counts[name] += float(getattr(output.counts, name))

    def quality(self) -> ConceptQuality | None:
        """None when the text was too short for a single prediction of a concept."""
        score, usage = self.score.compute(), self.usage.compute()
        if not score:
            return None
        return ConceptQuality(
            ncp_loss=self.sums["ncp"] / self.counts["ncp"],
            ncp_r2=score["ncp_r2_mean"],
            ncp_r2_copy=score["ncp_r2_copy"],
            vq_loss=self.sums["vq"] / self.counts["vq"],
            codebook_perplexity=usage["codebook_perplexity"],
            codebook_used=usage["codebook_used"],
            codebook_dead=usage["codebook_dead"],
            codebook_entries=self.entries,
        )


def _documents_digest(documents: Sequence[HeldoutDocument]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.doc_key}\0{document.n_bytes}\0".encode())
        digest.update(np.ascontiguousarray(document.input_ids, dtype="<u4").tobytes())
    return digest.hexdigest()
