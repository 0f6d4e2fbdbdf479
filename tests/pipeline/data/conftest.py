"""Real text for the data tests: the standard library, pinned and staged once per session."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.builtin import stdlib_prose
from pipeline.data.finish import finish_source
from pipeline.data.groups import plan_groups
from pipeline.data.manifest import Manifest
from pipeline.data.pins import Pin, make_pin
from pipeline.data.tokenize_group import load_receipt, tokenize_group
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.storage import Storage

SMALL_DATA = DataSpec(group_bytes=2 << 20, shard_tokens=1 << 18, heldout_fraction=0.02)


@pytest.fixture(scope="session")
def stdlib_storage(tmp_path_factory) -> Storage:
    return Storage(str(tmp_path_factory.mktemp("stdlib-store")))


@pytest.fixture(scope="session")
def code_pin(stdlib_storage) -> Pin:
    return make_pin(stdlib_storage, "code", SourceSpec(builtin="stdlib-code"), None)


@pytest.fixture(scope="session")
def prose_pin(stdlib_storage) -> Pin:
    return make_pin(stdlib_storage, "prose", SourceSpec(builtin="stdlib-prose"), None)


@pytest.fixture(scope="session")
def prose_texts() -> list[str]:
    return [document["text"] for document in stdlib_prose()]


@pytest.fixture(scope="session")
def tokenizer(stdlib_storage, prose_texts) -> Tokenizer:
    data = train_bpe(prose_texts[:1000], 2048)
    stdlib_storage.write_bytes("steps/tokenizer/tokenizer.json", data)
    return Tokenizer(data)


@pytest.fixture(scope="session")
def small_data() -> DataSpec:
    """Several groups of several shards even for the standard library."""
    return SMALL_DATA


@pytest.fixture(scope="session")
def stage() -> Callable[..., Manifest]:
    return _stage


@pytest.fixture(scope="session")
def lines() -> Callable[..., bytes]:
    """`lines("a", None)`: JSON lines with one `text` each."""
    return lambda *texts: b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def _stage(
    storage: Storage,
    output: str,
    pin: Pin,
    tokenizer: Tokenizer,
    data: DataSpec,
    special_tokens: str = "text",
    cleaning: Mapping[str, Any] | None = None,
) -> Manifest:
    """What `stage_source` does, one group after another in this process."""
    receipts = []
    for group in plan_groups(pin, data):
        receipt = load_receipt(storage, output, group, tokenizer.sha256) or tokenize_group(
            storage=storage,
            output=output,
            root=pin.open_root(storage),
            source=pin.source,
            group=group,
            special_tokens=special_tokens,
            data=data,
            tokenizer=tokenizer,
        )
        receipts.append(receipt)
    return finish_source(storage, output, pin, data, tokenizer, receipts, cleaning)


@pytest.fixture(scope="session")
def code(stdlib_storage, code_pin, tokenizer) -> Manifest:
    """The standard library's sources, staged: 12 MB in several groups and shards."""
    return _stage(stdlib_storage, "steps/code", code_pin, tokenizer, SMALL_DATA)


@pytest.fixture(scope="session")
def prose(stdlib_storage, prose_pin, tokenizer) -> Manifest:
    return _stage(stdlib_storage, "steps/prose", prose_pin, tokenizer, SMALL_DATA)


@pytest.fixture
def stage_files(tmp_path: Path, tokenizer) -> Callable[..., Manifest]:
    """Stage a directory of files that a test wrote: `stage_files({"data/a.jsonl": bytes}, heldout_fraction=0.0)`."""

    def run(files: dict[str, bytes], *, special_tokens: str = "text", **settings) -> Manifest:
        for name, content in files.items():
            path = tmp_path / "corpus" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        storage = Storage(str(tmp_path / "store"))
        pin = make_pin(storage, "corpus", SourceSpec(), str(tmp_path / "corpus"))
        data = DataSpec(**{"heldout_fraction": 0.0, **settings})
        return _stage(storage, "steps/corpus", pin, tokenizer, data, special_tokens)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Storage:
    """The storage that `stage_files` writes to."""
    return Storage(str(tmp_path / "store"))
