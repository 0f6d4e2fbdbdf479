"""Import of OLMo-core's token files: headerless `.npy`, with or without document boundaries.

AI2 publishes its mixes tokenized: raw little-endian unsigned integers of the smallest width that holds the
vocabulary, named `.npy` all the same (`numpy.load` fails on them), and beside each a `.csv.gz` whose rows begin with
`start,end` of a document, EOS included. Without that file the EOS tokens are the boundaries. A source of such files
says so in its globs: `["**/*.npy", "**/*.csv.gz"]`.

The tokens are taken over as they are; the text, decoded, only decides what is held out and how many bytes it has.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.objects import PinnedFile
from pipeline.data.tokenizer import Tokenizer
from pipeline.data.verified import open_verified
from pipeline.storage import Storage

SUFFIX = ".npy"
BOUNDARIES = ".csv.gz"
READ_TOKENS = 1 << 20


@dataclass(frozen=True)
class TokenDocument:
    """The ids of one document as the file has them, and its key `<path>:<number from 1>`."""

    ids: NDArray[np.uint32]
    key: str


def token_dtype(vocab_size: int) -> np.dtype:
    """The integer type of a token file: the smallest that holds every id (OLMo-core `NumpyDatasetDType`)."""
    return next(np.dtype(f"<u{width}") for width in (1, 2, 4) if vocab_size - 1 <= 2 ** (8 * width) - 1)


def token_documents(
    root: Storage, file: PinnedFile, group: Sequence[PinnedFile], tokenizer: Tokenizer
) -> Iterator[TokenDocument]:
    """Documents of one token file, in order; its boundaries are looked for among the files of its group.

    Raises DamagedFile for a size that is no whole number of tokens or boundaries that do not tile the file, SourceError
    for ids outside the vocabulary: the file was made with another tokenizer.
    """
    where = root.uri(file.path)
    dtype = token_dtype(tokenizer.vocab_size)
    if file.size % dtype.itemsize:
        raise DamagedFile(f"{where}: {file.size} bytes are no whole number of {dtype.itemsize}-byte tokens")
    total = file.size // dtype.itemsize
    sidecar = next((item for item in group if item.path == file.path.removesuffix(SUFFIX) + BOUNDARIES), None)
    with open_verified(root, file) as stream:
        read = _reader(io.BufferedReader(stream, READ_TOKENS * dtype.itemsize), dtype, tokenizer, where)  # type: ignore[arg-type]
        if sidecar is None:
            yield from _split_at_eos(read, file.path, tokenizer.eos_id)
        else:
            number = 0
            for number, (start, end) in enumerate(_boundaries(root, sidecar, total), start=1):
                yield TokenDocument(read(end - start), f"{file.path}:{number}")
            if not number and total:
                raise DamagedFile(f"{root.uri(sidecar.path)}: no boundaries for a file of {total} tokens")


def _reader(stream: io.BufferedReader, dtype: np.dtype, tokenizer: Tokenizer, where: str):
    def read(count: int) -> NDArray[np.uint32]:
        ids = np.frombuffer(stream.read(count * dtype.itemsize), dtype=dtype).astype(np.uint32)
        if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
            raise SourceError(
                f"{where}: token {int(ids.max())} is outside the tokenizer's vocabulary of {tokenizer.vocab_size}; "
                "the file was made with another tokenizer"
            )
        return ids

    return read


def _split_at_eos(read, path: str, eos_id: int) -> Iterator[TokenDocument]:
    number, parts = 0, []
    while len(chunk := read(READ_TOKENS)):
        cuts = np.flatnonzero(chunk == eos_id) + 1
        pieces = np.split(chunk, cuts)
        for piece in pieces[:-1]:
            number += 1
            yield TokenDocument(np.concatenate([*parts, piece]) if parts else piece, f"{path}:{number}")
            parts = []
        if len(pieces[-1]):
            parts.append(pieces[-1])
    if parts:
        yield TokenDocument(np.concatenate(parts), f"{path}:{number + 1}")


def _boundaries(root: Storage, file: PinnedFile, total: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each document; together they must tile [0, total)."""
    where = root.uri(file.path)
    expected = 0
    try:
        with open_verified(root, file) as stream:
            text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BufferedReader(stream)), newline="")  # type: ignore[arg-type]
            for row in csv.reader(text):
                start, end = int(row[0]), int(row[1])
                if start != expected or not start < end <= total:
                    raise DamagedFile(f"{where}: document [{start}, {end}) after token {expected} of {total}")
                expected = end
                yield start, end
    except (EOFError, OSError, zlib.error, csv.Error, ValueError, IndexError) as error:
        if isinstance(error, SourceError):
            raise
        raise DamagedFile(f"{where}: cannot be read to its end ({type(error).__name__}: {error})") from error
    if expected != total:
        raise DamagedFile(f"{where}: boundaries end at token {expected} of {total}")
