"""Strict streaming readers of Dolma-format files: JSON lines (plain, gzip, zstd) and parquet.

Strict means: a damaged *file* is an error and nothing made from it is committed, a bad *line* goes to quarantine
and is counted, and neither is ever taken for the end of the data. (`zstandard` and fsspec read a truncated frame as
a shorter file without a word; pyarrow's stream raises.) Only `text` is read: Dolma's other fields differ by directory.

What each kind of bad input does is the table of NCP's data contract:

| input | behaviour |
|---|---|
| text missing, null, not a string | skipped, `bad_text` |
| text empty or white space only | skipped, `empty` |
| text `[REMOVED]` | skipped, `removed` |
| invalid UTF-8 in a line, lone surrogates | U+FFFD and a counter; the line only, never the file |
| blank line, byte order mark | ignored, stripped |
| bad JSON, JSON that is no object, a line over `max_line_bytes` | quarantine and a counter |
| truncated or damaged stream | DamagedFile |
| duplicate, missing or numeric id | irrelevant: a document's key is its file and line |
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.counters import Counters
from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.objects import PinnedFile
from pipeline.data.quarantine import MAX_LINE_BYTES as HEAD_BYTES
from pipeline.data.quarantine import Quarantine
from pipeline.data.verified import open_verified, open_verified_seekable
from pipeline.storage import Storage

CHUNK_BYTES = 1 << 20
PARQUET_BATCH_ROWS = 256

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """A text and where it came from."""

    text: str
    key: str
    """`<path relative to the source>:<line>`, counted from 1; for parquet the row."""


class Reader:
    """Reads files of one group into documents, counting as it goes."""

    def __init__(self, *, max_line_bytes: int, counters: Counters, quarantine: Quarantine):
        self.max_line_bytes = max_line_bytes
        self.counters = counters
        self.quarantine = quarantine

    def documents(self, root: Storage, file: PinnedFile) -> Iterator[Document]:
        """Documents of one pinned file, in file order. Raises DamagedFile or ChangedSincePinned at the damage."""
        where = root.uri(file.path)
        try:
            if not file.size and file.path.endswith((".zst", ".gz")):
                raise EOFError("no bytes at all; even an empty stream has a frame")
            if file.path.endswith(".parquet"):
                with open_verified_seekable(root, file) as stream:
                    yield from self._rows(stream, file.path, where)
            else:
                with open_verified(root, file) as stream:
                    yield from self._lines(_decompress(stream, file.path), file.path)
        except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowException, OSError) as error:
            raise DamagedFile(
                f"{where}: cannot be read to its end ({type(error).__name__}: {error}); "
                "fetch it again, then pin the source anew if it changed"
            ) from error

    def _lines(self, read: Callable[[int], bytes], path: str) -> Iterator[Document]:
        for number, line, length in split_lines(read, self.max_line_bytes):
            if line.startswith(_BYTE_ORDER_MARK):
                line = line[len(_BYTE_ORDER_MARK) :]
            if not line.strip():
                self.counters.blank_lines += 1
                continue
            self.counters.documents_read += 1
            if length > self.max_line_bytes:
                detail = f"{length} bytes, over data.max_line_bytes {self.max_line_bytes}"
                self._reject(path, number, "line_too_long", detail, line)
                continue
            try:
                record = json.loads(self._decode(line))
            except (ValueError, RecursionError) as error:
                self._reject(path, number, "bad_json", str(error), line)
                continue
            if not isinstance(record, dict):
                self._reject(path, number, "not_an_object", f"a JSON {type(record).__name__}", line)
                continue
            text = self._text(record.get("text"))
            if text is not None:
                yield Document(text, f"{path}:{number}")

    def _rows(self, stream: BinaryIO, path: str, where: str) -> Iterator[Document]:
        table = pq.ParquetFile(stream)
        if "text" not in table.schema_arrow.names:
            raise SourceError(
                f"{where}: no column 'text'; its columns are {', '.join(table.schema_arrow.names)}"
            )
        number = 0
        for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=["text"]):
            for value in _raw_values(batch.column(0)):
                number += 1
                self.counters.documents_read += 1
                text = self._text(self._decode(value) if isinstance(value, bytes) else value)
                if text is not None:
                    yield Document(text, f"{path}:{number}")

    def _text(self, text: Any) -> str | None:
        """The text as it will be tokenized, or None when the document was skipped and counted."""
        if not isinstance(text, str):
            self.counters.skip("bad_text")
        elif not text or text.isspace():
            self.counters.skip("empty")
        elif text.strip() == "[REMOVED]":
            self.counters.skip("removed")
        else:
            return self._without_surrogates(text)
        return None

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.counters.invalid_utf8 += 1
            return data.decode(errors="replace")

    def _without_surrogates(self, text: str) -> str:
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            self.counters.lone_surrogates += 1
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _reject(self, path: str, number: int, reason: str, detail: str, line: bytes) -> None:
        self.counters.skip(reason)
        self.quarantine.add(path, number, reason, detail, line[:HEAD_BYTES])


def split_lines(read: Callable[[int], bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes, int]]:
    """(number from 1, line without its newline, its true length) of every line, in bounded memory.

    A line over `max_line_bytes` is yielded as its head only, and recognised by its length. The last line needs no
    newline. Only `\\n` ends a line: a text may hold any other Unicode line separator.
    """
    number, parts, length = 0, [], 0
    while chunk := read(CHUNK_BYTES):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            number += 1
            if parts:
                parts.append(piece if length <= max_line_bytes else b"")
                line, length = b"".join(parts), length + len(piece)
                parts = []
            else:
                line, length = piece, len(piece)
            yield number, line if length <= max_line_bytes else line[:HEAD_BYTES], length
            length = 0
        if rest:
            length += len(rest)
            parts.append(rest)
            if length > max_line_bytes:
                parts = [b"".join(parts)[:HEAD_BYTES]]
    if parts:
        yield number + 1, b"".join(parts) if length <= max_line_bytes else parts[0], length


def _decompress(stream: BinaryIO, path: str) -> Callable[[int], bytes]:
    """A `read` over the content, by suffix: `.zst` and `.gz` (any number of frames or members), else as it is."""
    if path.endswith(".zst"):
        return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd").read
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=io.BufferedReader(stream, CHUNK_BYTES)).read  # type: ignore[arg-type]
    return stream.read


def _raw_values(column: pa.Array) -> list[Any]:
    """Values of a text column as bytes where they are strings, so that invalid UTF-8 cannot fail a whole batch."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()
