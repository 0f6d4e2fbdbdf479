"""The text a tokenizer is trained on: the first bytes of each source, in pin order, held-out documents left out."""

from __future__ import annotations

from collections.abc import Iterator

from curriculum.schema import DataSpec
from pipeline.data.counters import Counters
from pipeline.data.heldout_rule import is_held_out
from pipeline.data.pins import Pin
from pipeline.data.quarantine import Quarantine
from pipeline.data.readers import Reader
from pipeline.data.token_files import refuse_token_files
from pipeline.storage import Storage


def training_texts(
    storage: Storage, pin: Pin, data: DataSpec, max_bytes: int, text_key: str = "text"
) -> Iterator[str]:
    """Texts of a source until they add up to `max_bytes` of UTF-8; the document that crosses the line is the last."""
    refuse_token_files(pin.source, (file.path for file in pin.files), "tokenizer.train")
    root = pin.open_root(storage)
    reader = Reader(
        max_line_bytes=data.max_line_bytes, counters=Counters(), quarantine=Quarantine(), text_key=text_key
    )
    size = 0
    for file in pin.files:
        for document in reader.documents(root, file):
            if is_held_out(document.text, data.heldout_fraction):
                continue
            yield document.text
            size += len(document.text.encode())
            if size >= max_bytes:
                return
