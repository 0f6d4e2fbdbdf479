"""From position to tensor: batches as a pure function of (stage, step, rank, world size, micro-batch).

The only module of `pipeline` that imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.data.instance_filter import RepetitionFilter
from pipeline.data.order import Order
from pipeline.data.packing import document_starts
from pipeline.data.shard_cache import ShardCache
from pipeline.data.windows import SourceWindows
from pipeline.storage import Storage

IGNORE_INDEX = -100
DIGEST_MODULUS = 2**63
CONCURRENT_READS = 16
"""Ranged reads in flight per loader when storage is remote."""
VERIFIED_REMOTE_BYTES = 8 << 30
"""Remote shards are read once to check their digests before their first window, if a stage's are no more than this; beyond
it that would move the whole stage through every worker, and what guards them is the service's own checksums."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass of one rank. The first `real` rows are windows; the rest pad the shape and weigh nothing."""

    input_ids: torch.Tensor
    """int64 [b, T]."""
    labels: torch.Tensor
    """int64 [b, T]: the inputs shifted left inside the window; -100 in the last place and in padding rows."""
    doc_starts: torch.Tensor | None
    """int64 [b, T], with `packing="doc"`: the place in its window where each token's document starts."""
    real: int
    masked: int
    """How many of the real rows the repetition filter left without labels."""
    digest: int
    """Sum over the real windows of a 63-bit hash of (position, tokens), modulo 2^63."""


class WindowLoader:
    """The batches of one stage.

    `outputs` maps each source of the mixture to the output prefix of its staging step. Shards on a local disk are
    memory-mapped. Remote ones are read window by window, many at once and one batch ahead; with `cache_dir` they are
    instead kept there whole, if all shards of the mixture fit in `cache_bytes`. Before the first batch every manifest is
    checked against its shards' sizes, and before its first window each shard's sha256 (`check=False` leaves both out; of
    remote stages beyond VERIFIED_REMOTE_BYTES the second). `packing="doc"` also says where documents start;
    the windows are the same. Raises ValueError for sources of different tokenizers, for a batch that does not
    hold whole windows, and for a source without one window.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        outputs: Mapping[str, str],
        weights: Mapping[str, float],
        block: int,
        seed: int,
        sequence_length: int,
        global_batch_tokens: int,
        check: bool = True,
        cache_dir: str | None = None,
        cache_bytes: int = 0,
        repetition_filter: RepetitionFilter | None = None,
        packing: str = "stream",
    ):
        if (
            sequence_length < 2
            or global_batch_tokens < sequence_length
            or global_batch_tokens % sequence_length
        ):
            raise ValueError(
                f"global_batch_tokens: {global_batch_tokens} is not a multiple of sequence_length {sequence_length}"
            )
        self.sequence_length = sequence_length
        self.windows_per_batch = global_batch_tokens // sequence_length
        drawn = [name for name in sorted(weights) if weights[name] > 0]
        missing = [name for name in drawn if name not in outputs]
        if missing:
            raise ValueError(f"mixture.{missing[0]}: the source has not been staged")
        self.sources = {
            name: SourceWindows(storage, outputs[name], sequence_length, check=check) for name in drawn
        }
        tokenizers = {name: source.manifest.tokenizer for name, source in self.sources.items()}
        if len(set(tokenizers.values())) > 1:
            raise ValueError(f"mixture: sources were staged with different tokenizers: {tokenizers}")
        windows = {name: source.windows for name, source in self.sources.items()}
        self.order = Order(windows, weights, block, seed)
        self.eos_id = next(iter(self.sources.values())).manifest.eos_id
        self._filter = repetition_filter
        self._pack_documents = packing == "doc"
        self._remote = not storage.local
        if self._remote:
            size = sum(
                int(source.manifest.table["bytes"].to_numpy().sum()) for source in self.sources.values()
            )
            if size > VERIFIED_REMOTE_BYTES:
                for source in self.sources.values():
                    source.verify_shards = False
            if cache_dir is not None and size <= cache_bytes:
                for source in self.sources.values():
                    source.cache = ShardCache(cache_dir, cache_bytes)
        self._reads = ThreadPoolExecutor(CONCURRENT_READS, "ncp-window") if self._remote else None
        self._prefetch = ThreadPoolExecutor(1, "ncp-prefetch") if self._remote else None
        self._ahead: tuple[tuple[int, int, int], Future[NDArray[np.uint32]]] | None = None

    @property
    def labels_per_batch(self) -> int:
        """Next-token predictions of a global batch over all ranks: the denominator of the mean loss. Windows that the
        repetition filter masks are counted in it, as in OLMo-core."""
        return self.windows_per_batch * (self.sequence_length - 1)

    def batch(self, step: int, rank: int, world_size: int, micro_batch_size: int) -> list[MicroBatch]:
        """The rank's share of global batch `step` (from 0), as equally many equally shaped micro-batches on every rank.

        The global batch is positions step*G to (step+1)*G-1; a rank takes every world_size-th. Where that does not
        divide, zero-weight rows fill up: as few as the micro-batch size allows, but a rank may hold nothing else.
        """
        if not 0 <= rank < world_size or micro_batch_size < 1 or step < 0:
            raise ValueError(f"loader: no batch for {step=}, {rank=}, {world_size=}, {micro_batch_size=}")
        positions = self._positions(step, rank, world_size)
        per_rank = -(-self.windows_per_batch // world_size)
        count = -(-per_rank // micro_batch_size)
        rows = -(-per_rank // count)
        tokens = self._share(step, rank, world_size)
        return [
            self._micro_batch(positions[i * rows : (i + 1) * rows], tokens[i * rows : (i + 1) * rows], rows)
            for i in range(count)
        ]

    def fixed_batch(self, windows: int) -> torch.Tensor:
        """input_ids int64 [windows, T] of the first positions of the global order, the same on every rank."""
        return torch.from_numpy(self.tokens_at(np.arange(windows)).astype(np.int64))

    def tokens_at(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """uint32 [len(positions), T]."""
        tokens = np.empty((len(positions), self.sequence_length), dtype=np.uint32)
        draws = self.order.at(positions)

        def read(row: int) -> None:
            source = self.sources[self.order.sources[draws.source[row]]]
            source.read(int(draws.window[row]), tokens[row])

        if self._reads is None:
            for row in range(len(positions)):
                read(row)
        else:
            for _ in self._reads.map(read, range(len(positions))):  # raises what a read raised
                pass
        return tokens

    def _positions(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        first = step * self.windows_per_batch
        return np.arange(first + rank, first + self.windows_per_batch, world_size, dtype=np.int64)

    def _share(self, step: int, rank: int, world_size: int) -> NDArray[np.uint32]:
        """The rank's windows of a batch: from the read-ahead if it guessed right. Starts on the next batch if remote."""
        if self._prefetch is None:
            return self.tokens_at(self._positions(step, rank, world_size))
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (step, rank, world_size):
            tokens = ahead[1].result()
        else:
            tokens = self.tokens_at(self._positions(step, rank, world_size))
        following = (step + 1, rank, world_size)
        self._ahead = (following, self._prefetch.submit(self.tokens_at, self._positions(*following)))
        return tokens

    def _micro_batch(self, positions: NDArray[np.int64], tokens: NDArray[np.uint32], rows: int) -> MicroBatch:
        real = len(tokens)
        input_ids = np.empty((rows, self.sequence_length), dtype=np.int64)
        labels = np.empty((rows, self.sequence_length), dtype=np.int64)
        input_ids[:real], input_ids[real:] = tokens, self.eos_id
        labels[:real, :-1], labels[real:], labels[:, -1] = tokens[:, 1:], IGNORE_INDEX, IGNORE_INDEX
        masked = self._filter.repeats(tokens) if self._filter else np.zeros(real, dtype=bool)
        labels[:real][masked] = IGNORE_INDEX
        digest = (
            sum(_window_hash(int(p), row) for p, row in zip(positions, tokens, strict=True)) % DIGEST_MODULUS
        )
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            labels=torch.from_numpy(labels),
            doc_starts=torch.from_numpy(document_starts(input_ids, self.eos_id))
            if self._pack_documents
            else None,
            real=real,
            masked=int(masked.sum()),
            digest=digest,
        )


def _window_hash(position: int, tokens: NDArray[np.uint32]) -> int:
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=8)
    digest.update(tokens.data)
    return int.from_bytes(digest.digest(), "little") >> 1
