"""Windows of one staged source: the i-th slice of L tokens, wherever its shard lies."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from pipeline.data.manifest import Manifest
from pipeline.data.shards import map_tokens, read_tokens
from pipeline.storage import Storage

MAX_MAPPED = 256
"""Shards mapped at once; each costs a file descriptor."""


class SourceWindows:
    """Window i is `input_ids[j*L : (j+1)*L]` of one shard; windows never cross shards, tails are dropped."""

    def __init__(self, storage: Storage, output: str, sequence_length: int, *, check: bool):
        self.manifest = Manifest.load(storage, output)
        if check:
            self.manifest.verify(storage)
        self.sequence_length = sequence_length
        self._storage, self._output = storage, output
        self._first = np.concatenate([[0], np.cumsum(self.manifest.shard_tokens // sequence_length)])
        self._mapped: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()

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
        if self._storage.local:
            out[:] = self._map(shard)[start : start + self.sequence_length]
        else:
            entry = self.manifest.shard(shard)
            out[:] = read_tokens(self._storage, self._output, entry, start, self.sequence_length)

    def _map(self, shard: int) -> NDArray[np.uint32]:
        tokens = self._mapped.get(shard)
        if tokens is None:
            entry = self.manifest.shard(shard)
            path = self._storage.local_path(f"{self._output}/{entry.key}")
            assert path is not None
            tokens = self._mapped[shard] = map_tokens(path, entry)
            if len(self._mapped) > MAX_MAPPED:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(shard)
        return tokens
