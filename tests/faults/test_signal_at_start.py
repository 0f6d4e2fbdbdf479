"""A signal that comes while Ray starts is a stop: exit code 4, the hint to resume, nothing told as failed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jobs.exit_codes import STOPPED
from pipeline.storage import Storage
from tests.ncp_process import SMALL, NcpProcess

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", ["record", "control service", "node"])
def test_a_signal_while_ray_starts_is_a_stop(tmp_path: Path, number: signal.Signals, after: str) -> None:
    store, told = tmp_path / "store", tmp_path / "told"
    process = NcpProcess(
        store,
        "run",
        SMALL,
        "--name",
        "r",
        f"runtime.notify.command=tee -a {told}",
        environment={"NCP_NOTIFY_URL": ""},
    )

    def begun() -> bool:
        if after == "record":
            return (store / "runs" / "r" / "log").is_dir()
        names = {"control service": "gcs_server", "node": "raylet"}
        return _descends(process.process.pid, names[after])

    process.wait_until(begun)
    process.process.send_signal(number)
    code, output = process.finish()
    assert code == STOPPED and "resume" in output and "Traceback" not in output, output
    assert not told.exists() or '"failed"' not in told.read_text()
    assert Storage(str(store)).exists("runs/r/run.json")


def _descends(parent: int, name: str) -> bool:
    """Whether some process of that name is a child of `parent`."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        if name in stat.rpartition(")")[0] and stat.rpartition(")")[2].split()[1] == str(parent):
            return True
    return False
