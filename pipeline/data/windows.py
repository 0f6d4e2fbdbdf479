"""Windows of one staged source: the i-th slice of L tokens, wherever its shard lies.

Three ways to a window, one interface: a shard on a local disk is memory-mapped; a remote shard is fetched whole into
a local cache once, if the caller gives one; otherwise a window is one ranged read of 4L bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.data.manifest import Manifest
from pipeline.data.shard_cache import ShardCache
from pipeline.data.shards import check_digest, map_tokens, read_tokens
from pipeline.storage import Storage

MAX_MAPPED = 256
"""Shards mapped at once; each costs a file descriptor."""


class SourceWindows:
    """Window i is `input_ids[j*L : (j+1)*L]` of one shard; windows never cross shards, tails are dropped.

    A shard's sha256 is checked once, before the first of its windows is given; `verify_shards` False leaves that out.
    `cache` may be set before the first read; it is only used when storage is remote. Reads are thread-safe.
    """

    def __init__(self, storage: Storage, output: str, sequence_length: int, *, check: bool):
        self.manifest = Manifest.load(storage, output)
        if check:
            self.manifest.verify(storage)
        self.sequence_length = sequence_length
        self.cache: ShardCache | None = None
        self.verify_shards = check
        self._storage, self._output = storage, output
        self._first = np.concatenate([[0], np.cumsum(self.manifest.shard_tokens // sequence_length)])
        self._mapped: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._lock = threading.Lock()
        self._verified: set[int] = set()
        self._verifying = threading.Lock()

    @property
    def windows(self) -> int:
        return int(self._first[-1])

    def locate(self, window: int) -> tuple[int, int]:
        """(shard index, first token in that shard's stream) of a window."""
        if not 0 <= window < self.windows:
            raise IndexError(f"{self.manifest.source}: window {window} is outside [0, {self.windows})")
        shard = int(np.searchsorted(self._first, window, side="right")) - 1
        return shard, (window - int(self._first[shard])) * self.sequence_length

    def windows_of(self, shard: int, first_token: int, last_token: int) -> range:
        """The windows of a shard that hold any of its tokens `first_token` to `last_token`; none for the tail."""
        first, end = int(self._first[shard]), int(self._first[shard + 1])
        length = self.sequence_length
        return range(min(first + first_token // length, end), min(first + last_token // length + 1, end))

    def read(self, window: int, out: NDArray[np.uint32]) -> None:
        """Copy one window's tokens into `out` ([L])."""
        shard, start = self.locate(window)
        if self._storage.local or self.cache is not None:
            out[:] = self._map(shard)[start : start + self.sequence_length]
        else:
            self._verify(shard)
            entry = self.manifest.shard(shard)
            out[:] = read_tokens(self._storage, self._output, entry, start, self.sequence_length)

    def _verify(self, shard: int) -> None:
        """Read the shard in storage once and compare its digest. A local copy is checked by the cache."""
        if not self.verify_shards or shard in self._verified:
            return
        with self._verifying:
            if shard not in self._verified:
                check_digest(self._storage, self._output, self.manifest.shard(shard))
                self._verified.add(shard)

    def _map(self, shard: int) -> NDArray[np.uint32]:
        with self._lock:
            tokens = self._mapped.get(shard)
            if tokens is None:
                entry = self.manifest.shard(shard)
                tokens = self._mapped[shard] = map_tokens(self._local_path(shard), entry)
                if len(self._mapped) > MAX_MAPPED:
                    self._mapped.popitem(last=False)
            else:
                self._mapped.move_to_end(shard)
            return tokens

    def _local_path(self, shard: int) -> Path:
        entry = self.manifest.shard(shard)
        path = self._storage.local_path(f"{self._output}/{entry.key}")
        if path is not None:
            self._verify(shard)
            return path
        assert self.cache is not None
        return self.cache.fetch(self._storage, self._output, entry)
