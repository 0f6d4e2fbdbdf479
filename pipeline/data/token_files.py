"""Import of files of token ids as the known toolkits write them; the tokens are taken over as they are.

| files | written by | width | documents |
|---|---|---|---|
| `X.npy` with or without `X.csv.gz` | Dolma toolkit, OLMo-core | not stored | rows `start,end`, else every EOS |
| `X.npy` of `np.save` | NumPy | in its header | the same |
| `X.bin` with `X.idx` | Megatron-LM | in the index | in the index |
| `X.ds` with `X.ds.index` | datatrove | not stored | ends, in the index |

A source of such files says so in its globs: `["**/*.npy", "**/*.csv.gz"]`. Every document ends in the tokenizer's EOS, or
the file is refused: it was made with another tokenizer or none was appended. A width that no file tells is given by the
source (`token_dtype`) or proved (`pipeline.data.token_width`). The text, decoded, only decides what is held out and how
many bytes it has.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.objects import PinnedFile
from pipeline.data.token_width import NUMPY_MAGIC, proved_width
from pipeline.data.tokenizer import Tokenizer
from pipeline.data.verified import open_verified
from pipeline.storage import Storage

COMPANIONS = {".npy": ".csv.gz", ".bin": ".idx", ".ds": ".ds.index"}
"""Suffix of a token file -> suffix of the file beside it that tells where its documents are."""
IGNORED = (".ds.metadata",)
READ_TOKENS = 1 << 20

_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C_MAGICS = (20240520, 20240801)


@dataclass(frozen=True)
class TokenDocument:
    """The ids of one document as the file has them, and its key `<path>:<number from 1>`."""

    ids: NDArray[np.uint32]
    key: str


def is_token_file(path: str) -> bool:
    return path.endswith(tuple(COMPANIONS))


def is_companion(path: str) -> bool:
    """Whether a file only says something of the token file beside it."""
    return path.endswith((*COMPANIONS.values(), *IGNORED))


def refuse_token_files(source: str, paths: Iterable[str], work: str) -> None:
    """Raise SourceError if a source that `work` needs as text comes as token ids."""
    path = next((path for path in paths if is_token_file(path) or is_companion(path)), None)
    if path is not None:
        raise SourceError(
            f"sources.{source}: {path} holds token ids, and {work} needs text; use the text, or leave that out"
        )


def companion(path: str) -> str:
    """The path at which the boundaries of a token file are looked for."""
    suffix = next(suffix for suffix in COMPANIONS if path.endswith(suffix))
    return path.removesuffix(suffix) + COMPANIONS[suffix]


def token_file_of(path: str) -> str | None:
    """The token file that a companion belongs to; None for one that belongs to none by its nature."""
    for suffix, beside in COMPANIONS.items():
        if path.endswith(beside):
            return path.removesuffix(beside) + suffix
    return None


def token_documents(
    root: Storage, file: PinnedFile, group: Sequence[PinnedFile], tokenizer: Tokenizer, token_dtype: str = ""
) -> Iterator[TokenDocument]:
    """Documents of one token file, in order; its boundaries are looked for among the files of its group.

    Raises DamagedFile for a size that is no whole number of tokens or boundaries that do not tile the file, SourceError
    naming the file for a width that cannot be proved, an id outside the vocabulary or a document without the EOS.
    """
    where = root.uri(file.path)
    beside = next((item for item in group if item.path == companion(file.path)), None)
    head = root.read_range(file.path, 0, min(file.size, 4096))
    bounds: Iterable[tuple[int, int]] | None = None
    stored, offset = "", 0
    if head.startswith(NUMPY_MAGIC):
        stored, offset = _numpy_header(head, where)
    elif file.path.endswith(".bin"):
        stored, bounds = _megatron(root, beside, head, where)
    if stored and token_dtype and np.dtype(stored) != np.dtype(token_dtype):
        raise SourceError(
            f"{where}: holds {np.dtype(stored).name}, token_dtype says {token_dtype}; correct the recipe"
        )
    told = token_dtype or ("" if stored else proved_width(root, file, tokenizer))
    dtype = np.dtype(stored) if stored else np.dtype(told).newbyteorder("<")
    if (file.size - offset) % dtype.itemsize:
        raise DamagedFile(
            f"{where}: {file.size - offset} bytes are no whole number of {dtype.itemsize}-byte tokens"
        )
    total = (file.size - offset) // dtype.itemsize
    if bounds is None and beside is not None:
        bounds = _datatrove(root, beside) if file.path.endswith(".ds") else _dolma(root, beside, total)
    if bounds is None and file.path.endswith(".ds"):
        raise SourceError(f"{where}: no .ds.index beside it; add '**/*.ds.index' to the source's globs")
    with open_verified(root, file) as raw:
        stream = io.BufferedReader(raw, READ_TOKENS * dtype.itemsize)  # type: ignore[arg-type]
        stream.read(offset)
        read = _reader(stream, dtype, tokenizer, where)
        if bounds is None:
            yield from _split_at_eos(read, file.path, where, tokenizer)
            return
        assert beside is not None
        expected = number = 0
        for number, (start, end) in enumerate(bounds, start=1):
            if start != expected or not start < end <= total:
                raise DamagedFile(
                    f"{root.uri(beside.path)}: document [{start}, {end}) after token {expected} of {total}"
                )
            expected = end
            ids = read(end - start)
            if not len(ids) or int(ids[-1]) != tokenizer.eos_id:
                last = int(ids[-1]) if len(ids) else None
                raise _other_eos(where, f"document {number} ends in id {last}", tokenizer)
            yield TokenDocument(ids, f"{file.path}:{number}")
        if expected != total:
            raise DamagedFile(f"{root.uri(beside.path)}: boundaries end at token {expected} of {total}")


def _other_eos(where: str, what: str, tokenizer: Tokenizer) -> SourceError:
    return SourceError(
        f"{where}: {what}, not in the tokenizer's {tokenizer.eos_token!r} (id {tokenizer.eos_id}); it was made with another "
        "tokenizer, tokenizer.eos_token is another one, or documents were written without it"
    )


def _reader(stream: io.BufferedReader, dtype: np.dtype, tokenizer: Tokenizer, where: str):
    def read(count: int) -> NDArray[np.uint32]:
        ids = np.frombuffer(stream.read(count * dtype.itemsize), dtype=dtype)
        for extreme in (int(ids.min()), int(ids.max())) if len(ids) else ():
            if not 0 <= extreme < tokenizer.vocab_size:
                raise SourceError(
                    f"{where}: token {extreme} is outside the tokenizer's vocabulary of {tokenizer.vocab_size}, read as "
                    f"{dtype.name}; the file was made with another tokenizer, or token_dtype is wrong"
                )
        return ids.astype(np.uint32)

    return read


def _split_at_eos(read, path: str, where: str, tokenizer: Tokenizer) -> Iterator[TokenDocument]:
    number, parts = 0, []
    while len(chunk := read(READ_TOKENS)):
        cuts = np.flatnonzero(chunk == tokenizer.eos_id) + 1
        pieces = np.split(chunk, cuts)
        for piece in pieces[:-1]:
            number += 1
            yield TokenDocument(np.concatenate([*parts, piece]) if parts else piece, f"{path}:{number}")
            parts = []
        if len(pieces[-1]):
            parts.append(pieces[-1])
    if parts and not number:
        raise _other_eos(where, f"{sum(map(len, parts)):,} tokens end in id {int(parts[-1][-1])}", tokenizer)
    if parts:
        yield TokenDocument(np.concatenate(parts), f"{path}:{number + 1}")


def _numpy_header(head: bytes, where: str) -> tuple[str, int]:
    """(dtype, offset of the values) of a file that np.save wrote."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
    except ValueError as error:
        raise DamagedFile(f"{where}: its NumPy header cannot be read ({error})") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise SourceError(
            f"{where}: a NumPy array of {dtype} and shape {shape}; token ids are one dimension of whole numbers"
        )
    return dtype.str, stream.tell()


def _dolma(root: Storage, file: PinnedFile, total: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each document from a `.csv.gz`."""
    where = root.uri(file.path)
    try:
        with open_verified(root, file) as stream:
            text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BufferedReader(stream)), newline="")  # type: ignore[arg-type]
            for row in csv.reader(text):
                yield int(row[0]), int(row[1])
    except (EOFError, OSError, zlib.error, csv.Error, ValueError, IndexError) as error:
        if isinstance(error, SourceError):
            raise
        raise DamagedFile(f"{where}: cannot be read to its end ({type(error).__name__}: {error})") from error


def _datatrove(root: Storage, file: PinnedFile) -> Iterator[tuple[int, int]]:
    """(start, end) of each document from a `.ds.index` of uint64 ends."""
    with open_verified(root, file) as stream:
        data = stream.read()
    if len(data) % 8:
        raise DamagedFile(f"{root.uri(file.path)}: {len(data)} bytes are no whole number of 8-byte ends")
    return itertools.pairwise([0, *np.frombuffer(data, dtype="<u8").tolist()])


def _megatron(
    root: Storage, index: PinnedFile | None, head: bytes, where: str
) -> tuple[str, Iterator[tuple[int, int]]]:
    """(dtype, (start, end) of each document) of a `.bin` from its `.idx`."""
    if len(head) >= 4 and int.from_bytes(head[:4], "little") in _LLM_C_MAGICS:
        raise SourceError(
            f"{where}: a file of llm.c, whose documents begin in EOT; not supported, convert it to Megatron's .bin and .idx"
        )
    if index is None:
        raise SourceError(
            f"{where}: no .idx beside it, which says how wide its ids are and where documents end; add '**/*.idx' to the "
            "source's globs"
        )
    place = root.uri(index.path)
    with open_verified(root, index) as stream:
        data = stream.read()
    if not data.startswith(_MEGATRON_MAGIC) or len(data) < 34:
        raise SourceError(f"{place}: not an index of Megatron-LM; it begins with {data[:9]!r}")
    code, sequences, documents = data[17], *np.frombuffer(data, "<u8", 2, 18).tolist()
    if code not in _MEGATRON_TYPES:
        raise SourceError(f"{place}: type code {code} holds no token ids; known: {_MEGATRON_TYPES}")
    if len(data) < 34 + 12 * sequences + 8 * documents:
        raise DamagedFile(
            f"{place}: {len(data)} bytes are too few for {sequences} sequences; it was cut short"
        )
    lengths = np.frombuffer(data, "<i4", sequences, 34).astype(np.int64)
    firsts = np.frombuffer(data, "<i8", documents, 34 + 12 * sequences)
    if not documents or int(firsts.max()) > sequences or int(firsts.min()) < 0:
        raise DamagedFile(f"{place}: its documents are not made of its {sequences} sequences")
    ends = np.concatenate([[0], np.cumsum(lengths)])[firsts]
    return _MEGATRON_TYPES[code], itertools.pairwise(ends.tolist())
