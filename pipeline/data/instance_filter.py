"""Windows that repeat themselves: OLMo-core's instance filter, on in its official 32B scripts and off in its 7B ones.

A window in which a pattern of at most `max_period` tokens repeats at least `max_count` times in a row keeps its place
in the batch, so shapes and positions stay, but none of its labels is scored. The loss is still divided by the labels
of the whole batch, as in OLMo-core: a filtered window counts as tokens of zero loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RepetitionFilter:
    """`RepetitionFilter()` has OLMo-core's values: periods 1 to 13, 32 times."""

    min_period: int = 1
    max_period: int = 13
    max_count: int = 32

    def repeats(self, tokens: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """[n, T] -> [n]: whether each window holds such a run."""
        found = np.zeros(len(tokens), dtype=bool)
        length = tokens.shape[1]
        for period in range(self.min_period, self.max_period + 1):
            run = period * (self.max_count - 1)  # so many tokens in a row equal the one a period before
            if run + period > length:
                break
            equal = tokens[:, period:] == tokens[:, :-period]
            counts = np.zeros((len(tokens), equal.shape[1] + 1), dtype=np.int32)
            np.cumsum(equal, axis=1, out=counts[:, 1:])
            found |= (counts[:, run:] - counts[:, :-run] == run).any(axis=1)
        return found
