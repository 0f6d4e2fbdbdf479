"""Every row of the table of bad input in `pipeline.data.readers`, and real damage to real files."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data import readers
from pipeline.data.counters import Counters
from pipeline.data.errors import DamagedFile, SourceError
from pipeline.data.pins import PinnedFile
from pipeline.data.quarantine import Quarantine
from pipeline.data.readers import Reader, split_lines
from pipeline.records import unseal_lines
from pipeline.storage import Storage


def quarantined(storage: Storage, key: str) -> list[bytes]:
    """The lines of a quarantine, proved by its digest."""
    return unseal_lines(storage.read_bytes(key), key).splitlines()


class Corpus:
    """A directory to write files into and read them back strictly."""

    def __init__(self, path):
        self.root = Storage(str(path))

    def read(
        self, content: bytes, name: str = "data/web/a.jsonl", max_line_bytes: int = 1 << 28, **keys: str
    ):
        """(texts, counters, quarantine records) of one file; keys are checked against nothing but kept in `keys`."""
        self.root.write_bytes(name, content)
        counters, quarantine = Counters(), Quarantine()
        reader = Reader(max_line_bytes=max_line_bytes, counters=counters, quarantine=quarantine, **keys)
        documents = list(reader.documents(self.root, PinnedFile(path=name, size=len(content))))
        self.keys = [document.key for document in documents]
        quarantine.write(self.root, "quarantine.jsonl")
        records = [json.loads(line) for line in quarantined(self.root, "quarantine.jsonl")]
        counters.documents_written = len(documents)
        counters.check(name)
        return [document.text for document in documents], counters, records


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return Corpus(tmp_path)


# --- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b'{"text": null}', b'{"id": "1"}', b'{"text": 7}', b'{"text": ["a"]}', b'{"text": {}}']
)
def test_text_missing_null_or_not_a_string_is_unreadable_as_bad_text(corpus, line):
    texts, counters, bad = corpus.read(line + b'\n{"text": "good"}\n')
    assert texts == ["good"] and counters.skipped == {"bad_text": 1} and counters.unreadable == 1
    assert [(record["line"], record["reason"]) for record in bad] == [(1, "bad_text")]


@pytest.mark.parametrize("line", [b'{"content": "a", "id": 1}', b'{"id": 1, "text": null, "content": "a"}'])
def test_a_file_without_one_text_is_an_error_that_names_its_fields(corpus, line):
    with pytest.raises(
        SourceError, match=r"none of its 3 records has a text under 'text'; its fields are .*'id'"
    ):
        corpus.read((line + b"\n") * 3)


def test_the_text_and_the_id_may_have_other_names(corpus):
    content = b'{"content": "a", "sha": "s1"}\n{"content": "b"}\n{"content": "c", "sha": 7}\n'
    assert corpus.read(content, text_key="content", id_key="sha")[0] == ["a", "b", "c"]
    assert corpus.keys == ["data/web/a.jsonl:s1", "data/web/a.jsonl:2", "data/web/a.jsonl:7"]
    table = pa.table({"content": ["a", "b"], "sha": ["s1", None], "text": [1, 2]})
    assert corpus.read(parquet(table), "a.parquet", text_key="content", id_key="sha")[0] == ["a", "b"]
    assert corpus.keys == ["a.parquet:s1", "a.parquet:2"]


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u00a0\u3000"])
def test_text_empty_or_white_space_only_is_skipped_as_empty(corpus, lines, text):
    texts, counters, _ = corpus.read(lines("one", text, "two"))
    assert texts == ["one", "two"] and counters.skipped == {"empty": 1}
    assert corpus.keys == ["data/web/a.jsonl:1", "data/web/a.jsonl:3"]


@pytest.mark.parametrize("text", ["[REMOVED]", " [REMOVED]\n"])
def test_text_removed_is_skipped_as_removed(corpus, lines, text):
    texts, counters, _ = corpus.read(lines(text, "said [REMOVED] here"))
    assert texts == ["said [REMOVED] here"] and counters.skipped == {"removed": 1}


def test_invalid_utf8_costs_a_character_and_never_the_rest_of_the_file(corpus, lines):
    content = lines("one") + b'{"text": "b\xff\xfed"}\n' + lines("three")
    texts, counters, bad = corpus.read(content)
    assert texts == ["one", "b\ufffd\ufffdd", "three"] and counters.invalid_utf8 == 1 and not bad


def test_lone_surrogates_become_replacement_characters_and_pairs_stay(corpus):
    texts, counters, _ = corpus.read(
        b'{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n{"text": "\\udc00"}\n'
    )
    assert texts == ["a\ufffdb", "\U0001f600", "\ufffd"] and counters.lone_surrogates == 2


def test_blank_lines_and_byte_order_marks_are_ignored_and_lines_keep_their_numbers(corpus):
    texts, counters, bad = corpus.read(
        b'\xef\xbb\xbf{"text": "one"}\n\n  \r\n\xef\xbb\xbf\n{"text": "two"}\r\n\n'
    )
    assert texts == ["one", "two"] and counters.blank_lines == 4 and counters.documents_read == 2 and not bad
    assert corpus.keys == ["data/web/a.jsonl:1", "data/web/a.jsonl:5"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "bad_json"),
        (b'{"text": "a"} {"text": "b"}', "bad_json"),
        (b"\x00\x00\x00", "bad_json"),
        (b'{"text": ' + b"[" * 100_000, "bad_json"),
        (b'["text"]', "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"7", "not_an_object"),
    ],
)
def test_bad_json_goes_to_quarantine_with_file_line_and_reason(corpus, lines, line, reason):
    texts, counters, bad = corpus.read(lines("one") + line + b"\n" + lines("two"))
    assert texts == ["one", "two"] and counters.skipped == {reason: 1} and counters.unreadable == 1
    assert [(r["file"], r["line"], r["reason"]) for r in bad] == [("data/web/a.jsonl", 2, reason)]
    assert bad[0]["detail"] and bad[0]["head"].encode() == line[: 64 << 10]


def test_ids_may_be_duplicate_missing_or_numbers(corpus):
    texts, _, _ = corpus.read(b'{"id": 7, "text": "a"}\n{"id": 7, "text": "a"}\n{"text": "b"}\n')
    assert texts == ["a", "a", "b"] and len(set(corpus.keys)) == 3


def test_schemas_that_differ_by_line_do_not_matter(corpus):
    texts, _, _ = corpus.read(
        b'{"id": "x", "metadata": {"a": 1}, "text": "a"}\n{"text": "b", "id": 3, "metadata": "{}"}\n'
    )
    assert texts == ["a", "b"]


def test_other_line_separators_do_not_end_a_line(corpus, lines):
    text = "one\u2028two\x85three\x0cfour"
    assert corpus.read(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")[0] == [text]


def test_the_last_line_needs_no_newline_but_must_be_whole(corpus, lines):
    assert corpus.read(lines("one", "two")[:-1])[0] == ["one", "two"]
    texts, counters, _ = corpus.read(lines("one", "two")[:-3])
    assert texts == ["one"] and counters.skipped == {"bad_json": 1}


# --- codecs and damage -------------------------------------------------------------------------------------

COMPRESSORS = {
    "jsonl": lambda data: data,
    "jsonl.gz": lambda data: gzip.compress(data, mtime=0),
    "jsonl.zst": lambda data: zstandard.compress(data),
    "jsonl.ZSTD": lambda data: zstandard.compress(data),
    "jsonl.bz2": bz2.compress,
    "json.xz": lzma.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_codec_and_any_number_of_frames_read_the_same(corpus, prose_texts, lines, suffix):
    texts = prose_texts[:300]
    compress = COMPRESSORS[suffix]
    assert corpus.read(compress(lines(*texts)), f"a.{suffix}")[0] == texts
    frames = b"".join(compress(lines(*texts[i : i + 7])) for i in range(0, 300, 7))
    assert corpus.read(frames, f"b.{suffix}")[0] == texts
    halves = lines(*texts)
    assert corpus.read(compress(halves[:1000]) + compress(halves[1000:]), f"c.{suffix}")[0] == texts


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst", "jsonl.bz2", "json.xz"])
@pytest.mark.parametrize("keep", [0, 1, 10, 0.5, -5, -1])
def test_a_stream_truncated_inside_a_frame_is_damage_and_not_a_shorter_file(
    corpus, prose_texts, lines, suffix, keep
):
    whole = COMPRESSORS[suffix](lines(*prose_texts[:300]))
    cut = whole[: int(len(whole) * keep)] if isinstance(keep, float) else whole[:keep]
    with pytest.raises(DamagedFile, match=rf"a\.{suffix}: cannot be read to its end"):
        corpus.read(cut, f"a.{suffix}")


def test_a_stream_truncated_at_a_frame_edge_is_caught_by_the_pinned_size(corpus, lines):
    """No zstd reader can tell; the size in the pin can."""
    first, second = (zstandard.compress(lines(text)) for text in ("one", "two"))
    corpus.root.write_bytes("a.jsonl.zst", first)
    reader = Reader(max_line_bytes=1 << 20, counters=Counters(), quarantine=Quarantine())
    with pytest.raises(SourceError, match="bytes now"):
        list(reader.documents(corpus.root, PinnedFile(path="a.jsonl.zst", size=len(first + second))))


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
def test_rubbish_after_the_last_frame_is_damage(corpus, lines, suffix):
    with pytest.raises(DamagedFile):
        corpus.read(COMPRESSORS[suffix](lines("one")) + b"rubbish that is no frame", f"a.{suffix}")


def test_one_bad_byte_in_the_middle_is_an_error_or_a_counted_line_but_never_silence(
    corpus, prose_texts, lines
):
    """Dolma's frames carry no checksum, so a flipped byte may still decompress; then the pinned hash has to tell."""
    import hashlib

    whole = zstandard.compress(lines(*prose_texts[:300]))
    randomness = random.Random(5)
    for _ in range(20):
        place = randomness.randrange(8, len(whole))
        damaged = whole[:place] + bytes([whole[place] ^ (1 << randomness.randrange(8))]) + whole[place + 1 :]
        corpus.root.write_bytes("a.jsonl.zst", damaged)
        pinned = PinnedFile(path="a.jsonl.zst", size=len(whole), sha256=hashlib.sha256(whole).hexdigest())
        reader = Reader(max_line_bytes=1 << 20, counters=Counters(), quarantine=Quarantine())
        with pytest.raises(SourceError):
            list(reader.documents(corpus.root, pinned))


def test_a_file_in_another_format_than_its_name_says_is_damage(corpus, lines):
    with pytest.raises(DamagedFile):
        corpus.read(lines("plain"), "a.jsonl.zst")
    with pytest.raises(DamagedFile):
        corpus.read(lines("plain"), "a.jsonl.gz")
    with pytest.raises(DamagedFile):
        corpus.read(lines("plain"), "a.parquet")
    for suffix, compress in COMPRESSORS.items():
        if suffix != "jsonl":
            with pytest.raises(DamagedFile, match="named plain JSON lines, but begins as"):
                corpus.read(compress(lines("packed")), "a.jsonl")


def test_a_file_of_no_known_kind_is_refused_by_name(corpus, lines):
    with pytest.raises(SourceError, match=r"shard\.jsonl\.zst338588528: of no kind"):
        corpus.read(zstandard.compress(lines("x")), "shard.jsonl.zst338588528")


# --- long lines --------------------------------------------------------------------------------------------


def test_a_line_over_the_limit_is_quarantined_in_bounded_memory(corpus, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_BYTES", 1 << 16)
    content = b'{"text": "one"}\n{"text": "' + b"x" * 30_000_000 + b'"}\n{"text": "two"}\n'
    corpus.root.write_bytes("a.jsonl", content)
    counters, quarantine = Counters(), Quarantine()
    reader = Reader(max_line_bytes=1_000_000, counters=counters, quarantine=quarantine)
    tracemalloc.start()
    documents = reader.documents(corpus.root, PinnedFile(path="a.jsonl", size=len(content)))
    assert [document.text for document in documents] == ["one", "two"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
    assert counters.skipped == {"line_too_long": 1} and len(quarantine) == 1


def test_a_line_of_exactly_the_limit_passes(corpus):
    line = b'{"text": "0123456789"}'
    assert corpus.read(line + b"\n", max_line_bytes=len(line))[0] == ["0123456789"]
    texts, counters, bad = corpus.read(line + b"\n", max_line_bytes=len(line) - 1)
    assert not texts and counters.skipped == {"line_too_long": 1}
    assert bad[0]["detail"] == f"{len(line)} bytes, over data.max_line_bytes {len(line) - 1}"


@given(
    st.binary(max_size=300).map(lambda data: data.replace(b"a", b"\n")),
    st.integers(1, 20),
    st.integers(0, 40),
)
def test_split_lines_is_split_whatever_the_chunks(content, chunk, limit):
    before = readers.CHUNK_BYTES
    readers.CHUNK_BYTES = chunk
    try:
        found = list(split_lines(io.BytesIO(content).read, limit))
    finally:
        readers.CHUNK_BYTES = before
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [number for number, _, _ in found] == list(range(1, len(expected) + 1))
    assert [length for _, _, length in found] == [len(line) for line in expected]
    for (_, line, length), whole in zip(found, expected, strict=True):
        assert line == whole if length <= limit else whole.startswith(line)


def test_quarantine_keeps_the_heads_of_lines_in_bounded_memory():
    quarantine = Quarantine()
    for number in range(1000):
        quarantine.add("a.jsonl", number, "bad_json", "detail", b"x" * (1 << 20))
    storage = Storage("memory://quarantine-test")
    quarantine.write(storage, "q.jsonl")
    records = [json.loads(line) for line in quarantined(storage, "q.jsonl")]
    assert len(records) == len(quarantine) == 1000
    assert sum(len(record["head"]) for record in records) == 16 << 20
    assert records[0]["head"] == "x" * (64 << 10) and records[-1]["head"] == ""


# --- parquet -----------------------------------------------------------------------------------------------


def parquet(table: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_reads_its_text_column_whatever_its_string_type(corpus, prose_texts, kind):
    texts = prose_texts[:600]
    values = [text.encode() for text in texts] if kind == pa.binary() else texts
    table = pa.table(
        {"id": range(600), "text": pa.array(values).cast(kind) if kind != pa.binary() else values}
    )
    assert corpus.read(parquet(table, row_group_size=250), "a.parquet")[0] == texts
    assert corpus.keys[-1] == "a.parquet:600"


def test_parquet_rows_follow_the_same_table(corpus):
    table = pa.table({"text": pa.array(["one", None, "", "[REMOVED]", "two"])})
    texts, counters, _ = corpus.read(parquet(table), "a.parquet")
    assert texts == ["one", "two"] and counters.skipped == {"bad_text": 1, "empty": 1, "removed": 1}
    assert corpus.keys == ["a.parquet:1", "a.parquet:5"]


def test_invalid_utf8_in_parquet_costs_a_character(corpus):
    values = pa.array([b"good", b"b\xffd"])
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, values.buffers())})
    texts, counters, _ = corpus.read(parquet(table), "a.parquet")
    assert texts == ["good", "b\ufffdd"] and counters.invalid_utf8 == 1


def test_parquet_without_a_text_column_says_what_it_has(corpus):
    with pytest.raises(SourceError, match="no column 'text'; its columns are content, id"):
        corpus.read(parquet(pa.table({"content": ["a"], "id": [1]})), "a.parquet")


def test_a_truncated_parquet_is_damage(corpus, prose_texts):
    data = parquet(pa.table({"text": prose_texts[:100]}))
    for cut in (len(data) // 2, len(data) - 1):
        with pytest.raises(DamagedFile):
            corpus.read(data[:cut], "a.parquet")


def test_nothing_is_lost_in_a_mixture_of_everything(corpus, prose_texts, lines):
    """documents_read = written + skipped, over a file with every kind of line."""
    kinds = [
        lines("good")[:-1],
        b"",
        b"{bad",
        b"[]",
        lines("")[:-1],
        lines(None)[:-1],
        lines("[REMOVED]")[:-1],
        b"\xff\xfe",
    ]
    chosen = list(itertools.islice(itertools.cycle(kinds), 800))
    random.Random(1).shuffle(chosen)
    texts, counters, bad = corpus.read(b"\n".join(chosen) + b"\n")
    assert texts == ["good"] * 100 and counters.blank_lines == 100 and counters.documents_read == 700
    assert counters.skipped == {
        "bad_json": 200,
        "not_an_object": 100,
        "empty": 100,
        "bad_text": 100,
        "removed": 100,
    }
    assert len(bad) == counters.unreadable == 400
