"""The tokenizer step's training, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.schema import DataSpec, SourceSpec, TokenizerTraining
from jobs.steps.tokenizer import _train
from pipeline.data.errors import SourceError
from pipeline.data.pins import make_pin
from pipeline.storage import Storage


def test_a_source_without_any_text_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "store"))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"text": ""}\n{"text": "  "}\n')
    pins = [make_pin(storage, "web", SourceSpec(), str(tmp_path / "web"))]
    with pytest.raises(
        SourceError, match=r"sources\.web: no document with any text in .*runtime\.locations\.web"
    ):
        _train(storage.url, "steps/t/tokenizer.json", pins, TokenizerTraining(vocab_size=300), DataSpec())
    assert not storage.exists("steps/t/tokenizer.json")


def test_a_trained_tokenizer_says_its_hash_and_size(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "store"))
    pins = [make_pin(storage, "prose", SourceSpec(builtin="stdlib-prose"), None)]
    spec = TokenizerTraining(vocab_size=400, max_bytes_per_source=50_000)
    made = [_train(storage.url, f"steps/t/{n}.json", pins, spec, DataSpec()) for n in range(2)]
    assert made[0]["vocab_size"] == 400 and made[0]["sha256"] == made[1]["sha256"]
