"""Cleaning with datatrove's filters and deduplication: one group by hand, and the whole by a real local Ray."""

from __future__ import annotations

import json

import pytest
from datatrove.data import Document

from curriculum.schema import CleaningSpec, DataSpec, SourceSpec
from pipeline.data.clean_group import bucket_receipt
from pipeline.data.cleaning import clean_source
from pipeline.data.errors import SourceError
from pipeline.data.filters import FilterChain, PlainWordTokenizer, check_settings
from pipeline.data.manifest import Manifest
from pipeline.data.pins import make_pin
from pipeline.data.readers import Counters, Quarantine, Reader
from pipeline.storage import Storage

DATA = DataSpec(group_bytes=1)


@pytest.fixture
def clean(tmp_path, ray_session):
    def clean(
        files: dict[str, bytes], spec: CleaningSpec, output: str = "steps/clean", data: DataSpec = DATA
    ):
        storage = Storage(str(tmp_path / "lr[1]"))
        for name, content in files.items():
            storage.write_bytes(f"raw/{name}", content)
        pin = make_pin(storage, "web", SourceSpec(globs=("**/*.jsonl*", "**/*.npy")), storage.uri("raw"))
        cleaned = clean_source(
            storage=storage, output=output, pin=pin, spec=spec, data=data, parallelism=2, cpus_per_task=0.5
        )
        reader = Reader(max_line_bytes=1 << 28, counters=Counters(), quarantine=Quarantine())
        root = cleaned.pin.open_root(storage)
        return cleaned, [
            document.text for file in cleaned.pin.files for document in reader.documents(root, file)
        ]

    return clean


def test_filters_remove_what_they_are_for_and_say_which(prose_texts):
    spec = CleaningSpec(filters=("gopher_repetition", "gopher_quality"))
    kept = sum(FilterChain(spec).keep(Document(text=text, id="0")) for text in prose_texts[:300])
    assert 20 < kept < 280
    for name, text in (
        ("gopher_repetition", "buy now\n" * 200),
        ("gopher_quality", "six words of very plain English"),
    ):
        chain = FilterChain(CleaningSpec(filters=(name,)))
        assert not chain.keep(Document(text=text, id="1"))
        assert list(chain.removed.values()) == [1] and next(iter(chain.removed)).startswith(f"{name}:")


def test_settings_reach_the_filter():
    spec = CleaningSpec(
        filters=("gopher_quality",), settings={"gopher_quality": {"min_doc_words": 2, "min_stop_words": 0}}
    )
    assert FilterChain(spec).keep(Document(text="short but kept", id="1"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filters": ("gophr",)}, r"clean\.filters: 'gophr' is unknown; known: c4"),
        ({"dedup": "fuzzy"}, r"clean\.dedup: 'fuzzy'"),
    ],
)
def test_an_unknown_filter_or_dedup_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CleaningSpec(**change)


def test_the_word_tokenizer_cuts_words_and_sentences_and_spans_tile_the_text():
    words, text = PlainWordTokenizer(), 'He said "stop." Then, it\'s over! Really?'
    assert words.word_tokenize("it's well-known, no?") == ["it's", "well-known", ",", "no", "?"]
    assert words.sent_tokenize(text) == ['He said "stop.', "Then, it's over!", "Really?"]
    spans = words.span_tokenize(text)
    assert "".join(text[start:end] for start, end in spans) == text and len(spans) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"gopher_quality": {"min_doc_wrods": 2}},
            r"s\.clean\.settings\.gopher_quality\.min_doc_wrods: .*min_doc_words",
        ),
        (
            {"gopher_quality": {"min_doc_words": "two"}},
            r"min_doc_words: 'two' is not a finite number; its default is 50",
        ),
        ({"gopher_quality": {"min_doc_words": float("nan")}}, r"min_doc_words: nan is not a finite number"),
        ({"gopher_quality": {"language": "de"}}, r"gopher_quality\.language: .* has no such setting"),
        ({"c4": {"min_num_sentences": 3}}, r"settings\.c4: 'c4' is not in s\.clean\.filters"),
    ],
)
def test_settings_are_held_against_the_filters_own_parameters(settings, message):
    with pytest.raises(SourceError, match=message):
        check_settings("s.clean", CleaningSpec(filters=("gopher_quality",), settings=settings))


def test_settings_that_the_filters_take_pass_the_check():
    settings = {
        "gopher_quality": {"min_doc_words": 2, "stop_words": ["the"], "max_doc_words": None},
        "c4": {"filter_no_terminal_punct": False},
    }
    check_settings("s.clean", CleaningSpec(filters=("gopher_quality", "c4"), settings=settings))


def test_numbers_and_short_texts_are_what_they_are_to_minhash(clean, lines):
    """Sums and tables differ in their numbers alone; a copy of three words is still a copy."""
    sums = [f"What is {a} + {b}? It is {a + b}." for a in range(3, 40, 3) for b in range(2, 20)][:200]
    signs = ["work out 8 + 2 now please", "work out 8 - 2 now please"]
    weather = [
        f"2021-{1 + day // 28:02d}-{1 + day % 28:02d}: max {12.5 + day / 10:.1f}, min {day % 9}, rain {day % 7}.{day % 10}"
        for day in range(140)
    ]
    short = ["three short words", "three short words", "three other words", "Three short words"]
    cleaned, left = clean({"a.jsonl": lines(*sums, *signs, *weather, *short)}, CleaningSpec(dedup="minhash"))
    assert left == [*sums, *signs, *weather, "three short words", "three other words", "Three short words"]
    assert cleaned.counts["duplicates"] == 1


def test_a_cleaning_that_takes_nearly_all_is_refused_by_name(clean, lines, prose_texts):
    spec = CleaningSpec(dedup="exact", max_removed=0.4)
    with pytest.raises(
        SourceError,
        match=r"sources\.web\.clean: 5 of 6 .*5 as duplicates.* over clean\.max_removed 0\.4; raise it if",
    ):
        clean({"a.jsonl": lines(*[prose_texts[0]] * 6)}, spec)


def test_token_files_are_not_cleaned_as_if_they_were_text(clean):
    with pytest.raises(
        SourceError, match=r"sources\.web: a\.npy holds token ids, and sources\.web\.clean needs text"
    ):
        clean({"a.npy": b"\1\0" * 40}, CleaningSpec(dedup="exact"))


@pytest.mark.parametrize("dedup", ["exact", "minhash"])
def test_of_equal_texts_the_first_stays_wherever_they_lie(clean, prose_texts, lines, dedup):
    texts = [text for text in dict.fromkeys(prose_texts) if len(text) > 600][:40]
    files = {
        "a.jsonl": lines(*texts[:30]),
        "b.jsonl": lines(texts[3], *texts[25:]),
        "c.jsonl": lines(texts[3], texts[3]),
    }
    cleaned, left = clean(files, CleaningSpec(dedup=dedup))
    assert len(left) == len(set(left)) and set(left) <= set(texts)
    assert cleaned.counts["documents_read"] == 48 == len(left) + cleaned.counts["duplicates"]
    if dedup == "exact":
        assert left == texts


def test_near_duplicates_go_with_minhash_and_stay_with_exact(clean, prose_texts, lines):
    text = max(prose_texts, key=len)
    near = text.replace(".", ";", 1)
    others = [other for other in prose_texts if 500 < len(other) < 900][:3]
    files = {"a.jsonl": lines(text, *others), "b.jsonl": lines(near)}
    assert len(clean(files, CleaningSpec(dedup="minhash"), "steps/minhash")[1]) == 4
    assert len(clean(files, CleaningSpec(dedup="exact"), "steps/exact")[1]) == 5


def test_counts_add_up_and_a_second_run_redoes_nothing(clean, prose_texts, lines, tmp_path):
    spec = CleaningSpec(filters=("gopher_repetition", "gopher_quality"), dedup="exact")
    files = {f"{n}.jsonl": lines(*prose_texts[n * 40 : n * 40 + 60], "", None) for n in range(3)}
    data = DataSpec(group_bytes=1, bad_line_tolerance=0.02)
    cleaned, left = clean(files, spec, data=data)
    counts = cleaned.counts
    assert counts["skipped"] == {"bad_text": 3, "empty": 3} and counts["removed"] and counts["duplicates"] > 0
    gone = sum(counts["removed"].values()) + sum(counts["skipped"].values()) + counts["duplicates"]
    assert counts["documents_read"] == 186 == counts["documents"] + gone and counts["documents"] == len(left)
    record = json.loads((tmp_path / "lr[1]/steps/clean/cleaned.json").read_text())
    assert record["counts"] == counts and record["digest"] == cleaned.pin.digest

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "lr[1]/steps/clean/data").iterdir()}
    again, _ = clean(files, spec, data=data)
    assert again == cleaned
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "lr[1]/steps/clean/data").iterdir()
    } == before


def test_task_failures_surface(clean, prose_texts, lines):
    """datatrove's own Ray executor logs them and ends normally."""
    import zstandard

    files = {
        "a.jsonl": lines(*prose_texts[:5]),
        "b.jsonl.zst": zstandard.compress(lines(*prose_texts[:50]))[:-30],
    }
    with pytest.raises(SourceError, match=r"^web: .*b\.jsonl\.zst: cannot be read to its end"):
        clean(files, CleaningSpec(dedup="exact"))


def test_nothing_left_is_an_error_that_says_what_removed_it(clean, lines):
    with pytest.raises(
        SourceError, match=r"sources\.web: cleaning left nothing of 2 documents; removed: .*gopher_short_doc"
    ):
        clean({"a.jsonl": lines("short", "shorter")}, CleaningSpec(filters=("gopher_quality",)))


def test_a_comparison_that_was_killed_half_way_goes_on_with_the_other_buckets(
    clean, prose_texts, lines, tmp_path
):
    """MinHash compares bucket by bucket; what a kill leaves is some receipts, and no list of duplicates."""
    files = {f"{n}.jsonl": lines(*prose_texts[n * 30 : n * 30 + 40]) for n in range(3)}
    storage, spec = Storage(str(tmp_path / "lr[1]")), CleaningSpec(dedup="minhash")
    whole, left = clean(files, spec)
    for key in (
        "steps/clean/cleaned.json",
        "steps/clean/dedup/done.json",
        *storage.keys("steps/clean/data"),
        *storage.keys("steps/clean/dedup/duplicates"),
        *(bucket_receipt("steps/clean", bucket) for bucket in range(3, 14)),
    ):
        storage.delete(key)
    kept = storage.path(bucket_receipt("steps/clean", 0))
    before = storage.fs.modified(kept)
    assert clean(files, spec) == (whole, left)
    assert storage.fs.modified(kept) == before


def test_the_manifest_says_what_each_filter_removed(clean, prose_texts, lines, tmp_path, tokenizer, stage):
    files = {f"{n}.jsonl": lines(*prose_texts[n * 40 : n * 40 + 60]) for n in range(3)}
    spec = CleaningSpec(filters=("gopher_quality",), dedup="exact")
    cleaned, _ = clean(files, spec)
    storage = Storage(str(tmp_path / "lr[1]"))
    stage(storage, "steps/shards", cleaned.pin, tokenizer, DATA, cleaning=cleaned.counts)
    manifest = Manifest.load(storage, "steps/shards")
    assert manifest.cleaning is not None and manifest.cleaning == cleaned.counts
    assert any(name.startswith("gopher_quality:") for name in manifest.cleaning["removed"])
    assert manifest.counters.documents_read == cleaned.counts["documents"]
