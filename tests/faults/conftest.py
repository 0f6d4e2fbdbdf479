"""One run that nothing happened to, for all faults to be held against."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.storage import Storage
from tests.faults.two_stages import TWO_STAGES
from tests.ncp_process import SMALL, ncp


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("uninterrupted") / "store"
    code, output = ncp(storage, "run", SMALL)
    assert code == 0, output
    return storage


@pytest.fixture(scope="session")
def two_stages_uninterrupted(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The same and all that follows it in tests/two_stages.yaml, on disk."""
    path = tmp_path_factory.mktemp("two-stages") / "store"
    shutil.copytree(uninterrupted, path)
    code, output = ncp(path, "run", TWO_STAGES)
    assert code == 0, output
    return Storage(str(path))
