"""The prose source staged without Ray: for tests that need shards and nothing else."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.finish import finish_source
from pipeline.data.groups import plan_groups
from pipeline.data.pins import make_pin
from pipeline.data.tokenize_group import tokenize_group
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.data.training_text import training_texts
from pipeline.storage import Storage


def stage_prose(storage: Storage, output: str, vocab_size: int = 512) -> Tokenizer:
    """Shards of the standard library's prose under `output`, with a tokenizer trained on it; made once a process, then copied."""
    made, tokenizer = _staged(output, vocab_size)
    for key in made.keys(""):
        storage.write_bytes(key, made.read_bytes(key))
    return tokenizer


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""What was made, until the process ends."""


@cache
def _staged(output: str, vocab_size: int) -> tuple[Storage, Tokenizer]:
    _KEPT.append(tempfile.TemporaryDirectory(prefix="ncp-staged-"))
    storage = Storage(str(Path(_KEPT[-1].name)))
    data = DataSpec(shard_tokens=1 << 18, heldout_fraction=0.02)
    pin = make_pin(storage, "prose", SourceSpec(builtin="stdlib-prose"), None)
    tokenizer = Tokenizer(train_bpe(training_texts(storage, pin, data, 200_000), vocab_size))
    receipts = [
        tokenize_group(
            storage=storage,
            output=output,
            root=pin.open_root(storage),
            source="prose",
            group=group,
            special_tokens="text",
            data=data,
            tokenizer=tokenizer,
        )
        for group in plan_groups(pin, data)
    ]
    finish_source(storage, output, pin, data, tokenizer, receipts)
    return storage, tokenizer
