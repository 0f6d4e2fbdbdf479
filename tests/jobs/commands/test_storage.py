"""`ncp runs`, `ncp gc`, `ncp doctor` and partial runs as their user meets them; and a step that another run computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from jobs.runs.record import list_runs, read_run
from pipeline.dag.lease import Lease, LeaseBook
from pipeline.storage import Storage
from tests.ncp_process import SMALL, NcpProcess, ncp


def test_a_run_waits_for_another_that_computes_its_step_and_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it takes the step over, stops at --until, is listed, removed and collected; and kept no secret."""
    planted = {"AWS_SECRET_ACCESS_KEY": "planted-aws-secret", "HF_TOKEN": "hf_planted_token"}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    store = tmp_path / "store"
    storage = Storage(str(store))
    process = NcpProcess(store, "run", SMALL, "--name", "mine", "--until", "tokenizer")
    process.wait_until(lambda: list_runs(storage) == ["mine"])
    lease = LeaseBook(storage, read_run(storage, "mine")["steps"][0]["key"]).acquire("theirs")
    assert isinstance(lease, Lease)
    with lease:
        process.wait_until(
            lambda: any(
                b"held by run theirs" in storage.read_bytes(key)
                for key in storage.keys("runs/mine/log")
                if key.endswith(".txt")
            )
        )
        status = _in_process(store, "status", "mine")
        assert "held by run theirs (process" in status, status
    code, output = process.finish()
    assert code == 0, output
    assert "1 steps, 0 done already; 3 left out" in output
    assert "tokenizer: waiting: held by run theirs" in output
    assert "tokenizer: started" in output and "attempt 2" in output
    assert output.rstrip().endswith("mine: tokenizer done")

    kept = b"".join(storage.read_bytes(key) for key in storage.keys(""))
    assert not [value for value in planted.values() if value.encode() in kept or value in output]

    (row,) = json.loads(_in_process(store, "runs", "--json"))
    assert (row["run"], row["recipe"]) == ("mine", "small")
    assert "4 of its 4 steps are then named by no run" in _in_process(store, "runs", "rm", "mine")
    assert list_runs(storage) == ["mine"], "listed only"
    _in_process(store, "runs", "rm", "mine", "--yes")
    assert list_runs(storage) == []
    assert "to remove them: ncp gc --yes" in _in_process(store, "gc")
    assert storage.children("steps"), "listed only"
    output = _in_process(store, "gc", "--yes")
    assert "removed steps/tokenizer-" in output and "removed pins/stdlib-prose-" in output
    assert storage.children("steps") == storage.children("pins") == storage.children("sources") == []


def _in_process(store: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--storage", str(store)])
    assert result.exit_code == 0, result.output
    return result.output


def test_doctor_tells_what_is_there_and_writes_nothing(tmp_path: Path) -> None:
    code, output = ncp(tmp_path / "store", "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(output)}
    assert code == (1 if any(check["needed"] and not check["ok"] for check in checks.values()) else 0)
    assert {"python", "packages", "ray cluster", "storage", "gpus", "chromium", "wandb", "disk"} <= set(
        checks
    )
    assert checks["storage"]["ok"] and checks["packages"]["ok"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_fails_when_something_needed_is_missing_and_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    code, output = ncp(tmp_path / "store", "doctor", "--address", "http://127.0.0.1:9")
    assert code == 1 and "Traceback" not in output
    missing = [line.split()[1] for line in output.splitlines() if line.startswith("MISSING")]
    assert missing == ["ray", "storage"], output
    assert "start it (ray start --head)" in output and "choose a writable directory" in output
