"""What a cluster is given: code and settings, whole, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.cluster import shipping
from jobs.cluster.shipping import carried_environment, shipped_name, stage_code
from tests.ncp_process import SMALL


def test_only_code_and_the_recipe_are_uploaded(tmp_path: Path) -> None:
    stage_code(tmp_path, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curriculum",
        "jobs",
        "ncp_model",
        "pipeline",
        "small.yaml",
    ]
    assert not list(tmp_path.rglob("__pycache__"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 3_000_000


def test_a_recipe_that_extends_other_files_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "base.yaml").write_text(Path(SMALL).read_text())
    (here / "mine.yaml").write_text("extends: base.yaml\nrecipe: mine\nstages: {stage1: {seed: 7}}\n")
    mine = str(here / "mine.yaml")
    stage_code(there, mine)
    monkeypatch.chdir(there)
    assert load_recipe(shipped_name(mine)) == load_recipe(mine)


def test_a_bundled_recipe_is_called_by_its_name(tmp_path: Path) -> None:
    stage_code(tmp_path, "demo")
    assert shipped_name("demo") == "demo" and not list(tmp_path.glob("*.yaml"))


def test_too_much_code_names_the_biggest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MAX_UPLOAD_BYTES", 10_000)
    with pytest.raises(RecipeError, match=r"move out the biggest files: \w+/"):
        stage_code(tmp_path, "demo")


def test_settings_travel_and_credentials_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "3")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "secret")
    carried = carried_environment()
    assert carried["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert carried["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "3"
    assert "secret" not in str(carried)
