"""How wide the ids of a headerless token file are, proved from its beginning and the tokenizer.

Read at half its width, every second id is 0 and everything passes for text; read at twice, ids are pairs. A width is
believed if its ids are in the vocabulary, the odd ones are not all 0, documents end in EOS as often as text does, and the
first documents, decoded and encoded again, give their own ids. One that is not proved is never guessed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.data.errors import SourceError
from pipeline.data.objects import PinnedFile
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

WIDTHS = ("uint8", "uint16", "uint32", "int64")
"""Integer types tried, as `token_dtype` names them."""
NUMPY_MAGIC = b"\x93NUMPY"

_SAMPLE_BYTES = 1 << 20
_DOCUMENTS = 8
_DOCUMENT_TOKENS = 512
_AGREEMENT = 0.5
"""Share of the sampled ids that must come back. Text gives nearly all, another width or tokenizer nearly none."""


def proved_width(root: Storage, file: PinnedFile, tokenizer: Tokenizer) -> str:
    """The one integer type at which the file is text of this tokenizer.

    Raises SourceError naming the file, the widths tried and what spoke against each.
    """
    if not file.size:
        return WIDTHS[1]
    sample = root.read_range(file.path, 0, min(file.size, _SAMPLE_BYTES))
    tried = []
    for name in WIDTHS:
        dtype = np.dtype(name).newbyteorder("<")
        if tokenizer.vocab_size - 1 > np.iinfo(dtype).max:
            continue
        against = _against(sample, file.size, dtype, tokenizer)
        if against is None:
            return name
        tried.append(f"{name}: {against}")
    raise SourceError(
        f"{root.uri(file.path)}: no width at which it is text of this tokenizer ({'; '.join(tried)}); if it is, say how wide "
        "its ids are with the source's token_dtype"
    )


def _against(sample: bytes, size: int, dtype: np.dtype, tokenizer: Tokenizer) -> str | None:
    """What speaks against reading a file so; None when it is proved."""
    if size % dtype.itemsize:
        return f"{size} bytes are no whole number of {dtype.itemsize}-byte tokens"
    ids = np.frombuffer(sample[: len(sample) // dtype.itemsize * dtype.itemsize], dtype=dtype).astype(
        np.int64
    )
    if int(ids.max()) >= tokenizer.vocab_size or int(ids.min()) < 0:
        return f"token {int(ids.max())} is outside the vocabulary of {tokenizer.vocab_size}"
    if len(ids) > 1 and not ids[1::2].any():
        return "every second id is 0"
    agreement = _agreement(ids, tokenizer)
    if agreement < _AGREEMENT:
        return f"{agreement:.0%} of its first ids come back when decoded and encoded again"
    return None


def _agreement(ids: NDArray[np.int64], tokenizer: Tokenizer) -> float:
    """Share of the ids of the first documents that decoding and encoding gives back."""
    same = total = 0
    for document in np.split(ids, np.flatnonzero(ids == tokenizer.eos_id)[:_DOCUMENTS] + 1)[:_DOCUMENTS]:
        kept = document[:_DOCUMENT_TOKENS]
        kept = kept[kept != tokenizer.eos_id]
        if not len(kept):
            continue
        again = np.array(tokenizer.encode(tokenizer.decode(kept), "keep")[: len(kept)], dtype=np.int64)
        differing = np.flatnonzero(again != kept[: len(again)])
        same += int(differing[0]) if len(differing) else len(again)
        total += len(kept)
    return same / total if total else 0.0
