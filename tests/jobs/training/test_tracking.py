"""W&B for real, offline: one W&B run per trajectory, over restarts, with its lineage."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from curriculum.load import load_recipe
from curriculum.schema import PrecisionSpec, RuntimeSpec
from jobs.doctor import _wandb
from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.metric_log import MetricRow
from jobs.training import tracking
from jobs.training.tracking import NoTracker, WandbTracker, open_tracker
from jobs.training.train_job import Parent, TrainJob
from jobs.training.wandb_mode import wandb_mode
from pipeline.storage import Storage
from tests.ncp_process import wait_for
from tests.wandb_server import wandb_server


def _job(project: str, storage_url: str = "memory://tracking") -> TrainJob:
    recipe = load_recipe("demo")
    return TrainJob(
        storage_url=storage_url,
        step_key="steps/stage2-0123456789ab",
        attempt=1,
        run="demo-abc123",
        stage_name="stage2",
        stage=recipe.stages["stage2"],
        model=recipe.model,
        precision=PrecisionSpec(),
        shards={"prose": "steps/shards-prose-000000000000"},
        parent=Parent(stage="stage1", step_key="steps/stage1-ba9876543210", step=200, load="weights"),
        tokens_before=819200,
        stop_step=60,
        runtime=RuntimeSpec(wandb_project=project),
    )


def _row(step: int) -> MetricRow:
    return MetricRow(step=step, values={"ntp": 5.0 - step, "batch_digest": "ff"}, timing={"seconds": 0.5})


def test_without_a_project_nothing_is_tracked() -> None:
    assert isinstance(open_tracker(_job("")), NoTracker)


def test_restarts_continue_the_same_offline_run_with_config_and_lineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for steps in ((1, 2), (3,)):
        tracker = open_tracker(_job("ncp-tests"))
        for step in steps:
            tracker.log(_row(step))
        tracker.close()
    folders = sorted((tmp_path / "wandb").glob("offline-run-*-0123456789ab"))
    assert len(folders) == 2, list((tmp_path / "wandb").iterdir())
    records = [record for folder in folders for record in _records(folder)]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [(row["_step"], row["ntp"]) for row in history] == [(1, 4.0), (2, 3.0), (3, 2.0)]
    text = json.dumps(records)
    assert "steps/stage1-ba9876543210" in text and "819200" in text
    runs = [record["run"] for record in records if record["type"] == "run"]
    assert {run["run_id"] for run in runs} == {"0123456789ab"}
    assert {run["run_group"] for run in runs} == {"demo-abc123"}


@pytest.fixture
def no_wandb_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-own"))
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.mark.parametrize("url", ["{folder}/store", "memory://tracking-folders"])
def test_the_offline_folder_is_kept_beside_the_step(
    url: str, tmp_path: Path, no_wandb_settings: None
) -> None:
    """Also on storage that is no folder, where it comes at the end of the attempt."""
    job = _job("ncp-tests", url.format(folder=tmp_path))
    tracker = open_tracker(job)
    tracker.log(_row(1))
    tracker.close()
    kept = Storage(job.storage_url).keys(f"{job.step_key}/wandb")
    assert any(key.endswith("run-0123456789ab.wandb") for key in kept), kept


def test_a_refused_key_is_an_alert_and_the_attempt_is_kept_offline(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("WANDB_API_KEY", "not a key")
        job = _tracked(tmp_path, rows=2)
    (message,) = _alerts(job)
    assert "refused" in message and "offline" in message
    assert _kept_steps(job) == [1, 2]


def test_a_server_that_is_not_there_makes_an_offline_copy_at_once(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    job = _tracked(tmp_path, rows=2)
    (message,) = _alerts(job)
    assert "does not answer" in message
    assert _kept_steps(job) == [1, 2]


def test_a_server_that_never_answers_makes_an_offline_copy_at_once(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepted by the kernel, answered by nobody
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        job = _tracked(tmp_path, rows=2)
    (message,) = _alerts(job)
    assert "does not answer" in message
    assert _kept_steps(job) == [1, 2]


def test_a_server_that_stops_answering_after_the_first_word_makes_an_offline_copy(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "INIT_SECONDS", 2.0)
    with http_server(silent_to_post=True) as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        job = _tracked(tmp_path, rows=2)
    assert any("offline" in message for message in _alerts(job))
    assert _kept_steps(job) == [1, 2]


@pytest.mark.parametrize("how", ["silent", pytest.param("closed", marks=pytest.mark.matrix)])
def test_a_server_that_goes_away_midway_is_not_waited_for(
    how: Literal["closed", "silent"], tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: what W&B was not told lies beside the step, to be synced."""
    job = _job("ncp-tests", str(tmp_path / "store"))
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        tracker = open_tracker(job)
        tracker.log(_row(1))
        wait_for(lambda: server.files > 0)
        server.go(how)
        tracker.log(_row(2))
        closing = threading.Thread(target=tracker.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    assert any("W&B" in message for message in _alerts(job))
    kept = Path(job.storage_url, job.step_key, "wandb").rglob("run-*.wandb")
    steps = {
        record["history"]["item"]["_step"]
        for file in kept
        for record in _records(file.parent)
        if record["type"] == "history"
    }
    assert steps == {1, 2}


def test_a_killed_service_is_an_alert_and_the_rows_are_kept_by_another(
    tmp_path: Path, no_wandb_settings: None
) -> None:
    job = _job("ncp-tests", str(tmp_path / "store"))
    tracker = open_tracker(job)
    assert isinstance(tracker, WandbTracker)
    tracker.log(_row(1))
    os.kill(_service(tracker), signal.SIGKILL)
    for step in range(2, 5):
        tracker.log(_row(step))
    tracker.close()
    assert any("W&B failed" in message for message in _alerts(job))
    assert _kept_steps(job)[-1] == 4


def test_a_service_that_stands_still_is_left_after_its_time(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 2.0)
    job = _job("ncp-tests", str(tmp_path / "store"))
    tracker = open_tracker(job)
    assert isinstance(tracker, WandbTracker)
    service = _service(tracker)
    os.kill(service, signal.SIGSTOP)
    try:
        for step in range(1, 4000):
            tracker.log(_row(step))  # far more than a pipe holds
        tracker.close()
    finally:
        os.kill(service, signal.SIGKILL)
    assert not tracker._thread.is_alive()
    assert any("did not finish" in message for message in _alerts(job))


@pytest.mark.parametrize("asked", ["offline", "disabled", "dryrun", "Disabled", "onlin"])
def test_the_mode_that_was_asked_for_is_honoured_with_a_key_too(
    asked: str, tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", asked)
    mode = wandb_mode()
    assert (
        mode.mode == ("disabled" if asked.lower() == "disabled" else "offline") and asked.lower() in mode.why
    )
    if mode.mode == "disabled":
        assert isinstance(open_tracker(_job("ncp-tests", str(tmp_path / "store"))), NoTracker)
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "url", "mode"),
    [
        ("machine api.wandb.ai login user password secret", "", "online"),
        ("machine wandb.example login user password secret", "https://wandb.example:8080", "online"),
        ("machine api.wandb.ai.example login user password secret", "", "offline"),
        ("# machine api.wandb.ai login user password secret", "", "offline"),
        ("machine api.wandb.ai login user", "", "offline"),
        ("machine", "", "offline"),
        ("", "", "offline"),
    ],
)
def test_a_key_in_netrc_is_one_and_the_doctor_says_the_same(
    text: str, url: str, mode: str, tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text(text + "\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    if url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
    found = wandb_mode()
    assert found.mode == mode and "secret" not in found.why
    check = _wandb()
    assert check.ok == (mode == "online") and check.found == f"{mode}: {found.why}"


KEY = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def http_server(*, silent_to_post: bool = False) -> Iterator[str]:
    """A loopback server that answers 404, or stops answering when it is asked for something."""
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            if silent_to_post:
                over.wait()
            else:
                self.send_error(401)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()


def _tracked(folder: Path, rows: int) -> TrainJob:
    job = _job("ncp-tests", str(folder / "store"))
    tracker = open_tracker(job)
    for step in range(1, rows + 1):
        tracker.log(_row(step))
    tracker.close()
    return job


def _alerts(job: TrainJob) -> list[str]:
    storage = Storage(job.storage_url)
    return [read_alert(storage, key).message for key in alert_keys(storage, job.step_key)]


def _kept_steps(job: TrainJob) -> list[int]:
    """Steps in the newest offline folder."""
    folder = sorted(Path(job.storage_url, job.step_key, "wandb").glob("offline-run-*"))[-1]
    return [record["history"]["item"]["_step"] for record in _records(folder) if record["type"] == "history"]


def _service(tracker: WandbTracker) -> int:
    """The process id of the wandb-core that a tracker's process started, once it takes rows."""
    while True:
        process = tracker._process
        for path in Path("/proc").glob("[0-9]*/stat") if process else ():
            with contextlib.suppress(OSError):
                pid, rest = path.read_text().split(" (", 1)
                parent = rest.rpartition(") ")[2].split()[1]
                runs = list(Path(str(tracker._settings["dir"])).rglob("run-*.wandb"))
                if process is not None and int(parent) == process.pid and runs:
                    return int(pid)


def _records(folder: Path) -> list[dict[str, Any]]:
    output = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
