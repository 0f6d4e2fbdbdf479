"""Cleaning of one group of files; no Ray. Two passes, because duplicates are only known once all groups were read.

`filter_group` writes the documents that pass the filters, and their signatures for deduplication. `compare_bucket` and
`find_duplicates` compare signatures over all groups. `finish_group` writes what is left. Every pass writes data first and its receipt
last, and gives the same bytes when done again. Signatures and comparison are datatrove's (`pipeline.dedup`), without
its executors: those end normally when tasks fail.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from datatrove.data import Document as TroveDocument
from datatrove.io import DataFolder
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import TextNormConfig
from numpy.typing import NDArray

from curriculum.schema import CleaningSpec, DataSpec
from pipeline.data.counters import Counters
from pipeline.data.filters import FilterChain, PlainWordTokenizer
from pipeline.data.groups import Group
from pipeline.data.literal_folder import literal_folder
from pipeline.data.quarantine import Quarantine
from pipeline.data.readers import Reader
from pipeline.storage import Storage

HASH = HashConfig(precision=64, hash_fc="sha1")
"""datatrove's default needs xxhash below 4, which other packages have moved past."""
MINHASH = MinhashConfig(
    hash_config=HASH, norm_config=TextNormConfig(norm_numbers=False, remove_punctuation=False)
)
"""Numbers and signs count: with datatrove's defaults all sums and all tables of one form are one document."""


def _text(document: TroveDocument) -> str:
    return document.text


def _exact(group: int) -> ExactDedupConfig:
    """Earlier groups have priority, so that the first copy stays (datatrove keeps the highest priority)."""
    return ExactDedupConfig(
        content_getter=_text, document_priority=lambda _: max(1, 65_535 - group), hash_config=HASH
    )


def filtered_key(output: str, group: Group) -> str:
    return f"{output}/filtered/{group.name}.jsonl.zst"


def filter_group(
    *,
    storage: Storage,
    output: str,
    root: Storage,
    group: Group,
    groups: int,
    spec: CleaningSpec,
    data: DataSpec,
    text_key: str = "text",
) -> dict[str, Any]:
    """Write the documents of a group that pass the filters, and their signatures. Returns (and keeps) the counts."""
    counters, quarantine = Counters(), Quarantine()
    reader = Reader(
        max_line_bytes=data.max_line_bytes, counters=counters, quarantine=quarantine, text_key=text_key
    )
    chain = FilterChain(spec)

    def survivors() -> Iterator[TroveDocument]:
        for file in group.files:
            for document in reader.documents(root, file):
                trove = TroveDocument(text=document.text, id=document.key)
                if chain.keep(trove):
                    counters.documents_written += 1
                    yield trove

    _write(storage, filtered_key(output, group), survivors())
    if spec.dedup != "none":
        _signatures(storage, output, spec, _read(storage, filtered_key(output, group)), group.number, groups)
    if len(quarantine):
        quarantine.write(storage, f"{output}/quarantine/{group.name}.jsonl")
    removed = dict(sorted(chain.removed.items()))
    if counters.documents_read != counters.documents_written + sum(counters.skipped.values()) + sum(
        removed.values()
    ):
        raise AssertionError(f"{output} {group.name}: documents went missing: {counters} {removed}")
    receipt = {
        "group": group.number,
        "digest": group.digest,
        "documents_read": counters.documents_read,
        "skipped": dict(sorted(counters.skipped.items())),
        "unreadable": counters.unreadable,
        "removed": removed,
        "kept": counters.documents_written,
    }
    storage.write_json(f"{output}/filtered/{group.name}.json", receipt)
    return receipt


def compare_bucket(storage: Storage, output: str, bucket: int) -> None:
    """Find the pairs of near duplicates that one bucket of the MinHash signatures holds, over all groups."""
    pairs = _folder(storage, output, "pairs")
    MinhashDedupBuckets(_folder(storage, output, "signatures"), pairs, config=MINHASH).run(
        None, bucket, MINHASH.num_buckets
    )
    storage.write_json(bucket_receipt(output, bucket), {"bucket": bucket})


def bucket_receipt(output: str, bucket: int) -> str:
    return f"{output}/dedup/buckets/{bucket:05d}.json"


def find_duplicates(storage: Storage, output: str, spec: CleaningSpec) -> None:
    """Write which documents of which group go; the first copy stays. MinHash needs all its buckets compared before."""
    found = _folder(storage, output, "duplicates")
    if spec.dedup == "exact":
        ExactFindDedups(_folder(storage, output, "signatures"), found, _exact(0)).run(None, 0, 1)
    elif spec.dedup == "minhash":
        MinhashDedupCluster(_folder(storage, output, "pairs"), found, config=MINHASH).run(None, 0, 1)


def finish_group(
    *, storage: Storage, output: str, group: Group, groups: int, spec: CleaningSpec
) -> dict[str, Any]:
    """Write the documents of a group that are left, as a Dolma-format file. Returns (and keeps) the counts."""
    documents: Iterable[TroveDocument] = _read(storage, filtered_key(output, group))
    found = _folder(storage, output, "duplicates")
    if spec.dedup == "exact":
        documents = ExactDedupFilter(found, _exact(group.number)).run(documents, group.number, groups)
    elif spec.dedup == "minhash":
        documents = MinhashDedupFilter(found).run(documents, group.number, groups)
    path = f"data/{group.name}.jsonl.zst"
    count, size, content = _write(storage, f"{output}/{path}", documents)
    receipt = {
        "group": group.number,
        "digest": group.digest,
        "path": path,
        "documents": count,
        "content_size": size,
        "content_sha256": content,
    }
    storage.write_json(f"{output}/data/{group.name}.json", receipt)
    return receipt


class _Signature(MinhashDedupSignature):
    """A text too short for one n-gram has no shingle, and datatrove keeps all its copies; here it is its own shingle."""

    def get_shingles(self, text: str) -> NDArray[np.uint64]:
        shingles = super().get_shingles(text)
        return shingles if shingles.size else np.array([[self._hash_func(text)]], dtype=np.uint64)  # type: ignore[arg-type]


def _signatures(
    storage: Storage,
    output: str,
    spec: CleaningSpec,
    documents: Iterator[TroveDocument],
    rank: int,
    world: int,
) -> None:
    folder = _folder(storage, output, "signatures")
    if spec.dedup == "exact":
        ExactDedupSignature(folder, _exact(rank)).run(documents, rank, world)
    else:
        _Signature(folder, MINHASH, language=PlainWordTokenizer()).run(documents, rank, world)  # type: ignore[arg-type]


def _folder(storage: Storage, output: str, name: str) -> DataFolder:
    return literal_folder(storage, f"{output}/dedup/{name}")


def _write(storage: Storage, key: str, documents: Iterable[TroveDocument]) -> tuple[int, int, str]:
    """(documents, bytes, sha256 of the uncompressed lines) written as zstd; `id` is the key in the original source."""
    count, size, digest = 0, 0, hashlib.sha256()
    compressor = zstandard.ZstdCompressor()
    with storage.open_write(key) as file, compressor.stream_writer(file, closefd=False) as stream:
        for document in documents:
            line = json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False).encode() + b"\n"
            stream.write(line)
            digest.update(line)
            count += 1
            size += len(line)
    return count, size, digest.hexdigest()


def _read(storage: Storage, key: str) -> Iterator[TroveDocument]:
    with (
        storage.open_read(key) as file,
        pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream,
    ):
        rest = b""
        while chunk := stream.read(1 << 20):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                record = json.loads(line)
                yield TroveDocument(text=record["text"], id=record["id"])
