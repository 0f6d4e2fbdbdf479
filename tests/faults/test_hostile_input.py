"""Input of hostile size, as it is: a line of 200 MB, one over the limit, a document of ten million tokens.

Each is tokenized in a process of its own, so that its peak memory can be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.groups import plan_groups
from pipeline.data.pins import make_pin
from pipeline.data.shards import map_tokens
from pipeline.data.tokenize_group import load_receipt, tokenize_group
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.storage import Storage
from tests.ncp_process import ROOT

pytestmark = pytest.mark.matrix
PARAGRAPH = "It was the quiet hour, and nothing in the house moved but the clock. "
MIB = 1 << 20


def _tokenize(directory: Path) -> None:
    """In a process of its own: stage the one group of `directory`/corpus, print its peak above the imports in bytes."""
    before = _peak()
    storage = Storage(str(directory / "store"))
    pin = make_pin(storage, "corpus", SourceSpec(), str(directory / "corpus"))
    (group,) = plan_groups(pin, DataSpec())
    tokenize_group(
        storage=storage,
        output="out",
        root=pin.open_root(storage),
        source="corpus",
        group=group,
        special_tokens="text",
        data=DataSpec(heldout_fraction=0.0),
        tokenizer=Tokenizer((directory / "tokenizer.json").read_bytes()),
    )
    print(_peak() - before)


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024


def _stage(directory: Path, *texts: str):
    """(receipt, storage, peak bytes) after a file with those texts was tokenized."""
    (directory / "corpus").mkdir()
    with open(directory / "corpus/a.jsonl", "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    tokenizer = train_bpe([PARAGRAPH], 400)
    (directory / "tokenizer.json").write_bytes(tokenizer)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.test_hostile_input", str(directory)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    storage = Storage(str(directory / "store"))
    (group,) = plan_groups(make_pin(storage, "corpus", SourceSpec(), str(directory / "corpus")), DataSpec())
    receipt = load_receipt(storage, "out", group, Tokenizer(tokenizer).sha256)
    assert receipt is not None
    return receipt, storage, int(done.stdout.split()[-1])


def test_a_line_of_200_megabytes_goes_through(tmp_path: Path) -> None:
    text = PARAGRAPH * (200_000_000 // len(PARAGRAPH))
    receipt, _, peak = _stage(tmp_path, "before", text, "after")
    assert receipt.counters.documents_written == 3 and not receipt.counters.skipped
    assert peak < 12 * len(text), (
        "the line, its text, pieces of it and its tokens, but no objects by the token"
    )


def test_a_line_over_the_limit_is_quarantined_without_being_held(tmp_path: Path) -> None:
    text = "x" * (DataSpec().max_line_bytes + 50 * MIB)
    receipt, _, peak = _stage(tmp_path, "before", text, "after")
    assert receipt.counters.skipped == {"line_too_long": 1} and receipt.counters.documents_written == 2
    assert peak < 2.5 * DataSpec().max_line_bytes, "what was read before the limit, and one copy of it"


def test_a_document_of_ten_million_tokens_is_one_shard_and_decodes(tmp_path: Path) -> None:
    text = PARAGRAPH * (10_000_000 // 9)
    receipt, storage, _ = _stage(tmp_path, text)
    (entry,) = receipt.shards
    assert entry.rows == 1 and entry.tokens > 10_000_000
    tokens = map_tokens(Path(storage.path(f"out/{entry.key}")), entry)
    tokenizer = Tokenizer((tmp_path / "tokenizer.json").read_bytes())
    assert tokens[-1] == tokenizer.eos_id
    assert (
        tokenizer.decode(tokens[:90_000].tolist()) == text[: len(tokenizer.decode(tokens[:90_000].tolist()))]
    )
    assert sum(
        len(tokenizer.decode(tokens[at : at + 100_000].tolist())) for at in range(0, len(tokens) - 1, 100_000)
    ) >= len(text)


if __name__ == "__main__":
    _tokenize(Path(sys.argv[1]))
