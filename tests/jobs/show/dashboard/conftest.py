"""A real dashboard server on a port of its own, for the time of a test."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from jobs.show.dashboard.server import DashboardServer
from jobs.show.dashboard.site import Site
from pipeline.storage import Storage
from tests.jobs.counting import CountingStorage

_NAMES = itertools.count()


@pytest.fixture
def storage() -> Storage:
    return CountingStorage(f"memory://dashboard-{next(_NAMES)}")


@pytest.fixture
def server(storage: Storage) -> Iterator[DashboardServer]:
    with DashboardServer(Site(storage), "127.0.0.1", 0, names=["ncp.example"]) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
