"""What datatrove lists by a pattern is found whatever the store's own path looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.data.literal_folder import literal_folder
from pipeline.storage import Storage


@pytest.mark.parametrize("root", ["plain", "lr[1]", "a*b", "c?", "d{1,2}"])
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_pattern_is_only_the_pattern(kind: str, root: str, tmp_path: Path) -> None:
    store = Storage(f"{tmp_path}/{root}" if kind == "disk" else f"memory://{tmp_path}/{root}")
    for name in ("00/0.c4_sig", "01/1.c4_sig", "01/1.other", "top.dups"):
        store.write_bytes(f"s/dedup/{name}", b"1")
    folder = literal_folder(store, "s/dedup")
    assert folder.list_files(glob_pattern="*.dups") == ["top.dups"]
    assert folder.list_files(glob_pattern="*/*.c4_sig") == ["00/0.c4_sig", "01/1.c4_sig"]
    assert folder.list_files(subdirectory="01", glob_pattern=".c4_sig") == ["01/1.c4_sig"]
    assert folder.list_files(subdirectory="01") == ["01/1.c4_sig", "01/1.other"]
