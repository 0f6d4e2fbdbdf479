"""Shared by all tests: deterministic property tests, one local Ray for the whole session, and who runs beside whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.side_by_side import SideBySide, starts_processes

for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(
        threads, "1"
    )  # threads that wait by spinning would take the cores from the processes beside them

settings.register_profile(
    "ncp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ncp")

PROCESSES_SECONDS = 3600
"""The limit of a test of real processes, far from the need: each `ncp` in it has one of its own (tests/ncp_process.py)."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if starts_processes(item.nodeid.partition("::")[0]):
        item.add_marker(pytest.mark.timeout(PROCESSES_SECONDS))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Only `--dist loadscope` is ours to answer. In the order of the folders, whole runs begin among the first; by their number
    of tests, which is small, they would begin last and end alone."""
    if config.getvalue("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False
    return SideBySide(config, log)


@pytest.fixture(scope="session")
def ray_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A local Ray of two logical CPUs, shared by every test that needs one; HOME is a scratch directory."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        "HOME": str(home),
        "NCP_ASSETS": os.environ.get("NCP_ASSETS", str(Path.home() / ".cache" / "ncp" / "assets")),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=256 * 1024 * 1024,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
