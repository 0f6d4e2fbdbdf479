"""The local Ray dies under a run: the run leaves at once, with a code of its own, and the same command resumes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobs.exit_codes import UNREACHABLE
from tests.ncp_process import SMALL, NcpProcess, milestones, ncp, step_store

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]


def _descendant(parent: int, name: str) -> int:
    """The PID of the process called `name` that the run started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if command.rpartition("/")[2] == name and above == parent:
                return int(entry.name)
    raise AssertionError(f"no {name} below {parent}")


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_run_leaves_when_its_local_ray_dies_and_resumes(name: str, tmp_path: Path) -> None:
    storage = tmp_path / "store"
    run = NcpProcess(storage, "run", SMALL)
    run.wait_until(lambda: 20 in milestones(storage, "stage1"))
    os.kill(_descendant(run.process.pid, name), signal.SIGKILL)
    code, output = run.finish()
    assert code == UNREACHABLE, output
    assert f"its {name} was ended" in output and "run the same command again to resume" in output
    store = step_store(storage, "stage1")
    assert store is not None and store.failure() is None
    code, output = ncp(storage, "run", SMALL)
    assert code == 0, output
