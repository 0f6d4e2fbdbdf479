"""What a submission uploads and where it runs; the submission itself is in tests/faults, on a real cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from jobs import ray_jobs
from jobs.ray_jobs import carried_environment, interpreter, job_client, stage_code
from tests.ncp_process import SMALL


def test_only_code_and_the_recipe_are_uploaded(tmp_path: Path) -> None:
    assert stage_code(tmp_path, SMALL) == "small.yaml"
    top = sorted(path.name for path in tmp_path.iterdir())
    assert top == ["curriculum", "jobs", "ncp_model", "pipeline", "small.yaml"]
    assert not list(tmp_path.rglob("__pycache__"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2_000_000


def test_too_much_code_names_the_biggest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "MAX_UPLOAD_BYTES", 10_000)
    with pytest.raises(RecipeError, match=r"move out the biggest files: \w+/"):
        stage_code(tmp_path, "demo")


def test_a_cluster_on_this_machine_uses_this_interpreter() -> None:
    assert interpreter("http://127.0.0.1:8265") == sys.executable
    assert interpreter("http://head.cluster:8265") == "python"


def test_settings_travel_and_credentials_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    carried = carried_environment()
    assert carried["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1" and "secret" not in str(carried)


def test_an_address_that_does_not_answer_is_one_line() -> None:
    with pytest.raises(RecipeError, match=r"--address: 'http://127.0.0.1:1' does not answer"):
        job_client("http://127.0.0.1:1")
