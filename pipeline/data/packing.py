"""Where documents begin inside a window (`packing: doc`).

The window and its tokens are those of `packing: stream`; nothing is padded and nothing is accounted differently. What
changes is how the model reads them: attention stays inside a document, positions and the chunk grid start anew with each
one (docs/model.md 3; the model builds its grid from these starts, in fixed shapes). A document cut by the window's left edge
starts anew there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def document_starts(input_ids: NDArray[np.integer], eos_id: int) -> NDArray[np.int64]:
    """For each token of windows [B, T], the place in its window where its document starts; every EOS ends a document."""
    places = np.arange(input_ids.shape[1])
    begins = np.zeros(input_ids.shape, dtype=bool)
    begins[:, 0] = True
    begins[:, 1:] = input_ids[:, :-1] == eos_id
    return np.maximum.accumulate(np.where(begins, places, 0), axis=1).astype(np.int64)
