"""Strict streaming readers of Dolma-format files: JSON lines (plain or compressed) and parquet (`pipeline.data.formats`).

Strict means: a damaged *file* is an error and nothing made from it is committed, a bad *line* goes to quarantine
and is counted, and neither is ever taken for the end of the data. (`zstandard` and fsspec read a truncated frame as
a shorter file without a word; pyarrow's stream raises.) Only the text is read, and the id where one is asked for:
Dolma's other fields differ by directory.

What each kind of bad input does is the table of NCP's data contract:

| input | behaviour |
|---|---|
| text missing, null, not a string | quarantine and the counter `bad_text` |
| no text in the whole file | SourceError that names the fields it has |
| first bytes of another kind than the name says | DamagedFile |
| text empty or white space only | skipped, `empty` |
| text `[REMOVED]` | skipped, `removed` |
| invalid UTF-8 in a line, lone surrogates | U+FFFD and a counter; the line only, never the file |
| blank line, byte order mark | ignored, stripped |
| bad JSON, JSON that is no object, a line over `max_line_bytes` | quarantine and a counter |
| truncated or damaged stream | DamagedFile |
| duplicate, missing or numeric id | irrelevant: a document's key is its file and line, unless `id_key` names a field |
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.counters import Counters
from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.formats import KNOWN, MAGIC_BYTES, contradiction, format_of
from pipeline.data.objects import PinnedFile
from pipeline.data.quarantine import MAX_LINE_BYTES as HEAD_BYTES
from pipeline.data.quarantine import Quarantine
from pipeline.data.verified import open_verified, open_verified_seekable
from pipeline.storage import Storage, StorageUnavailable

CHUNK_BYTES = 1 << 20
PARQUET_BATCH_ROWS = 256
MAX_FIELDS = 40
"""Field names that an error shows."""
RENEW = "if it changed: ncp data pin SOURCE --renew"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """A text and where it came from."""

    text: str
    key: str
    """`<path relative to the source>:<line>`, counted from 1; for parquet the row. With an `id_key` the id stands for the
    line, where a record has one."""


class Reader:
    """Reads files of one group into documents, counting as it goes."""

    def __init__(
        self,
        *,
        max_line_bytes: int,
        counters: Counters,
        quarantine: Quarantine,
        text_key: str = "text",
        id_key: str = "",
    ):
        self.text_key, self.id_key = text_key, id_key
        self.max_line_bytes = max_line_bytes
        self.counters = counters
        self.quarantine = quarantine

    def documents(self, root: Storage, file: PinnedFile) -> Iterator[Document]:
        """Documents of one pinned file, in file order.

        Raises DamagedFile or ChangedSincePinned at the damage, SourceError for a file without any text or of no known kind.
        """
        where = root.uri(file.path)
        known = format_of(file.path)
        if known is None or known.kind not in ("lines", "parquet"):
            raise SourceError(f"{where}: of no kind that holds documents; known: {KNOWN}")
        try:
            if not file.size and known.codec:
                raise EOFError("no bytes at all; even an empty stream has a frame")
            if known.kind == "parquet":
                with open_verified_seekable(root, file) as stream:
                    yield from self._rows(stream, file.path, where)
            else:
                with open_verified(root, file) as stream:
                    buffered = io.BufferedReader(stream, CHUNK_BYTES)  # type: ignore[arg-type]
                    wrong = contradiction(file.path, buffered.peek(MAGIC_BYTES)[:MAGIC_BYTES])
                    if wrong:
                        raise DamagedFile(
                            f"{where}: cannot be read to its end: {wrong}; rename it or fetch it again, then {RENEW}"
                        )
                    yield from self._lines(_decompress(buffered, known.codec), file.path, where)
        except StorageUnavailable:
            raise
        except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, OSError) as error:
            raise DamagedFile(
                f"{where}: cannot be read to its end ({type(error).__name__}: {error}); fetch it again, then {RENEW}"
            ) from error

    def _lines(self, read: Callable[[int], bytes], path: str, where: str) -> Iterator[Document]:
        fields = _Fields()
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
            value = record.get(self.text_key)
            fields.saw(record, isinstance(value, str))
            if not isinstance(value, str):
                detail = f"{self.text_key!r} is {_kind(value) if self.text_key in record else 'missing'}"
                self._reject(path, number, "bad_text", detail, line)
                continue
            text = self._text(value)
            if text is not None:
                yield Document(
                    text, self._key(path, number, record.get(self.id_key) if self.id_key else None)
                )
        fields.check(where, self.text_key)

    def _rows(self, stream: BinaryIO, path: str, where: str) -> Iterator[Document]:
        table = pq.ParquetFile(stream)
        columns = table.schema_arrow.names
        for key in filter(None, (self.text_key, self.id_key)):
            if key not in columns:
                raise SourceError(
                    f"{where}: no column {key!r}; its columns are {', '.join(columns)}; set text_key (or id_key) of the "
                    "source to one of them"
                )
        fields, number = _Fields(), 0
        wanted = list(dict.fromkeys(filter(None, (self.text_key, self.id_key))))
        for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=wanted):
            ids = batch.column(self.id_key).to_pylist() if self.id_key else None
            for row, value in enumerate(_raw_values(batch.column(self.text_key))):
                number += 1
                self.counters.documents_read += 1
                fields.saw(columns, isinstance(value, bytes | str))
                if not isinstance(value, bytes | str):
                    self._reject(path, number, "bad_text", f"{self.text_key!r} is {_kind(value)}", b"")
                    continue
                text = self._text(self._decode(value) if isinstance(value, bytes) else value)
                if text is not None:
                    yield Document(text, self._key(path, number, ids[row] if ids else None))
        fields.check(where, self.text_key)

    def _key(self, path: str, number: int, identity: Any) -> str:
        usable = isinstance(identity, str | int) and not isinstance(identity, bool) and identity != ""
        return f"{path}:{identity if usable else number}"

    def _text(self, text: str) -> str | None:
        """The text as it will be tokenized, or None when the document was skipped and counted."""
        if not text or text.isspace():
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


class _Fields:
    """Which fields the records of one file have, and whether any holds a text."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._records, self._texts = 0, 0

    def saw(self, names: Iterable[str], text: bool) -> None:
        self._records += 1
        self._texts += text
        if len(self._names) < MAX_FIELDS and not self._texts:
            self._names.update(dict.fromkeys(itertools.islice(names, MAX_FIELDS)))

    def check(self, where: str, text_key: str) -> None:
        """Raise SourceError if there are records and none has a text: the text has another name there."""
        if self._records and not self._texts:
            raise SourceError(
                f"{where}: none of its {self._records} records has a text under {text_key!r}; its fields are "
                f"{', '.join(map(repr, self._names)) or 'none'}; set text_key of the source, or leave the file out"
            )


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _decompress(stream: io.BufferedReader, codec: str) -> Callable[[int], bytes]:
    """A `read` over the content; any number of frames, members or streams."""
    match codec:
        case "zstd":
            return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd").read
        case "gzip":
            return gzip.GzipFile(fileobj=stream).read
        case "bzip2":
            return bz2.BZ2File(stream).read
        case "xz":
            return lzma.LZMAFile(stream).read
    return stream.read


def _raw_values(column: pa.Array) -> list[Any]:
    """Values of a text column as bytes where they are strings, so that invalid UTF-8 cannot fail a whole batch."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()
