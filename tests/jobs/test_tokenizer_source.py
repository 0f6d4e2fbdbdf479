"""Published tokenizers: by file, by Hub id through a loopback server's address, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from jobs.tokenizer_source import read_tokenizer
from pipeline.data.tokenizer import train_bpe
from tests.hub_server import Hub, serving


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(b"{}")
    assert read_tokenizer(str(tmp_path / "mine.json")) == b"{}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dolma3", "'dolma3' is no asset .*dolma2.*, no .json file and no Hub id"),
        ("/nowhere/at/all.json", "cannot be read"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_tokenizer(name)


def test_a_hub_id_is_read_from_its_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_bpe(["some words to merge, some words to keep"], 300)
    hub = Hub("allenai/dolma3-tokenizer", kind="models")
    hub.files["tokenizer.json"] = tokenizer
    with serving(hub, monkeypatch):
        assert read_tokenizer("allenai/dolma3-tokenizer") == tokenizer
        with pytest.raises(RecipeError, match=r"tokenizer\.name: hf://allenai/none.* cannot be read"):
            read_tokenizer("allenai/none")
