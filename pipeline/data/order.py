"""The order in which windows are trained on: a pure function from position to (source, epoch, window).

Design, section 4. Position p lies in block b = p // K. A keyed bijection of [0, K) for b gives a slot; the slot
belongs to source s, and is its draw number j = b * a_s + (slot - first slot of s); a keyed bijection of [0, W_s) for
(s, epoch = j // W_s) gives the window. Nothing is stored, so a stage of any length starts and resumes at once, a
shorter run is a prefix of a longer one, and the content of a batch depends on neither world size nor restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curriculum.mixture import block_counts
from pipeline.data.permutation import derive_key, mix_keys, permute, unpermute

ORDER_VERSION = 1
"""Part of a trajectory's identity: bump it whenever the same inputs would give another order."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Where positions point. Arrays of one length; `source` indexes `Order.sources`."""

    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    window: NDArray[np.int64]


class Order:
    """The order of one stage.

    `windows` is how many windows each source holds; `weights` its share in the mixture; `block` is K; `seed` keys all
    permutations. Only the sources of `weights` take part. Raises ValueError naming a source without windows.
    """

    def __init__(self, windows: Mapping[str, int], weights: Mapping[str, float], block: int, seed: int):
        counts = block_counts(weights, block)
        self.counts = {name: count for name, count in counts.items() if count}
        """Windows of each source in a block, in sorted order of names."""
        self.sources = tuple(self.counts)
        for name in self.sources:
            if windows.get(name, 0) < 1:
                raise ValueError(
                    f"mixture.{name}: the source holds {windows.get(name, 0)} windows (a window never crosses a shard); "
                    "give it more text, a shorter sequence_length or larger shards"
                )
        self.windows = {name: int(windows[name]) for name in self.sources}
        self.block = block
        self.seed = seed
        self._per_block = np.array([self.counts[name] for name in self.sources], dtype=np.uint64)
        self._first = np.concatenate([[0], np.cumsum(self._per_block)[:-1]]).astype(np.uint64)
        self._block_key = derive_key("order", ORDER_VERSION, seed, "block")

    def at(self, positions: ArrayLike) -> Draws:
        """Source, epoch and window of each position (integers >= 0, any order, repeats allowed)."""
        place = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        if place.size and int(place.min()) < 0:
            raise ValueError(f"order: position {int(place.min())} is negative")
        block, offset = np.divmod(place.astype(np.uint64), np.uint64(self.block))
        slot = permute(offset, self.block, mix_keys(self._block_key, block))
        source = np.searchsorted(self._first, slot, side="right").astype(np.int64) - 1
        draw = block * self._per_block[source] + (slot - self._first[source])

        epoch = np.empty(place.shape, dtype=np.int64)
        window = np.empty(place.shape, dtype=np.int64)
        for index, name in enumerate(self.sources):
            mine = np.flatnonzero(source == index)
            if not mine.size:
                continue
            size = np.uint64(self.windows[name])
            epochs, within = np.divmod(draw[mine], size)
            epoch[mine] = epochs.astype(np.int64)
            for number in np.unique(epochs):
                of_epoch = epochs == number
                key = self._epoch_key(name, int(number))
                window[mine[of_epoch]] = permute(within[of_epoch], int(size), key).astype(np.int64)
        return Draws(source=source, epoch=epoch, window=window)

    def positions_of(self, source: str, window: int, total: int) -> list[int]:
        """Every position below `total` that draws this window of this source, ascending: the inverse of `at`."""
        index, size, count = self.sources.index(source), self.windows[source], self.counts[source]
        if not 0 <= window < size:
            raise ValueError(f"{source}: window {window} is outside [0, {size})")
        found = []
        last_draw = (-(-total // self.block)) * count
        for epoch in range(-(-last_draw // size)):
            key = self._epoch_key(source, epoch)
            draw = epoch * size + int(unpermute(np.array([window]), size, key)[0])
            block, within = divmod(draw, count)
            slot = np.array([int(self._first[index]) + within], dtype=np.uint64)
            keys = mix_keys(self._block_key, np.array([block], dtype=np.uint64))
            position = block * self.block + int(unpermute(slot, self.block, keys)[0])
            if position < total:
                found.append(position)
        return sorted(found)

    def draws(self, total: int) -> dict[str, int]:
        """How many of the first `total` positions draw from each source: exact, also inside a block."""
        whole, rest = divmod(total, self.block)
        tail = np.bincount(self.at(whole * self.block + np.arange(rest)).source, minlength=len(self.sources))
        return {
            name: whole * self.counts[name] + int(extra)
            for name, extra in zip(self.sources, tail, strict=True)
        }

    def _epoch_key(self, source: str, epoch: int) -> int:
        return derive_key("order", ORDER_VERSION, self.seed, "source", source, epoch)


def check_supply(order: Order, drawn: range, max_repetition: float, on_shortage: str) -> dict[str, float]:
    """How often each source is read through at the positions `drawn` of the order; 1.0 is one whole pass.

    Raises ValueError naming the source that would be drawn more than `max_repetition` times over, unless
    `on_shortage` is "repeat".
    """
    if on_shortage not in ("error", "repeat"):
        raise ValueError(f"on_shortage: {on_shortage!r} is not one of 'error', 'repeat'")
    until, before = order.draws(drawn.stop), order.draws(drawn.start)
    needed = {name: until[name] - before[name] for name in order.sources}
    repetition = {name: needed[name] / order.windows[name] for name in order.sources}
    for name, times in repetition.items():
        if on_shortage == "error" and needed[name] > max_repetition * order.windows[name]:
            raise ValueError(
                f"mixture.{name}: {needed[name]} windows are needed but the source holds {order.windows[name]} and "
                f"max_repetition is {max_repetition:g} ({times:.2f} passes); add text, lower its weight or the "
                "stage's tokens, raise max_repetition, or set on_shortage: repeat"
            )
    return repetition
