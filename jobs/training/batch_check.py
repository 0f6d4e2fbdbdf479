"""A batch that would poison the training is named before it does: token ids outside the vocabulary.

Shards are checked by size when a loader opens them, not read through; a disk that flips bits, or a shard of another
tokenizer in the place of the right one, shows here. An embedding would only say "index out of range".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from curriculum.errors import InputError
from pipeline.data.loader import MicroBatch, WindowLoader


class PoisonedBatch(InputError):
    """A batch holds what no tokenizer of this run wrote. Names the source, the shard and what to do."""


def check_ids(
    loader: WindowLoader,
    batches: Sequence[MicroBatch],
    step: int,
    rank: int,
    world_size: int,
    vocab_size: int,
) -> None:
    """Raise PoisonedBatch for the first window of the rank's share of global batch `step` with an impossible id."""
    row = 0
    for batch in batches:
        outside = (batch.input_ids >= vocab_size).any(dim=1).nonzero()
        if len(outside):
            first = int(outside[0])
            position = step * loader.windows_per_batch + rank + (row + first) * world_size
            draw = loader.order.at(np.array([position]))
            source = loader.order.sources[int(draw.source[0])]
            window = int(draw.window[0])
            shard, token = loader.sources[source].locate(window)
            key = loader.sources[source].manifest.shard(shard).key
            raise PoisonedBatch(
                f"step {step + 1}: window {window} of source {source} (shard {key}, from token {token}) holds id "
                f"{int(batch.input_ids[first].max())}, the vocabulary has {vocab_size}; the shard is damaged: see "
                f"ncp data verify, delete the shards' step directory and run again"
            )
        row += len(batch.input_ids)
