"""W&B for real, offline: one W&B run per trajectory, over restarts, with its lineage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curriculum.load import load_recipe
from curriculum.schema import PrecisionSpec
from jobs.training.alerts import alert_keys, read_alert
from jobs.training.metric_log import MetricRow
from jobs.training.tracking import NoTracker, open_tracker
from jobs.training.train_job import Parent, TrainJob
from pipeline.storage import Storage


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
        micro_batch_size=1,
        checkpoint_every_steps=1,
        log_every_steps=1,
        wandb_project=project,
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
    for name in ("WANDB_API_KEY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


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


def test_wandb_in_trouble_is_an_alert_and_training_goes_on(
    tmp_path: Path, no_wandb_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "not a key")
    job = _job("ncp-tests", str(tmp_path / "store"))
    assert isinstance(open_tracker(job), NoTracker)
    storage = Storage(job.storage_url)
    (key,) = alert_keys(storage, job.step_key)
    assert read_alert(storage, key).kind == "no_tracker"


def _records(folder: Path) -> list[dict[str, Any]]:
    output = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
