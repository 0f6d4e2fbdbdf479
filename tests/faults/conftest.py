"""One run that nothing happened to, for all faults to be held against."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ncp_process import SMALL, ncp


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("uninterrupted") / "store"
    code, output = ncp(storage, "run", SMALL)
    assert code == 0, output
    return storage
