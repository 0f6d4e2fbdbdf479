"""A real `ray start --head` of our own on this machine, to be submitted to and killed. Never `ray stop`: by PID only."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

START_SECONDS = 60


class RayHead:
    """One head node in a session of its own. A context manager that leaves no process behind."""

    def __init__(self, folder: Path, *, num_cpus: int = 2):
        self.token = secrets.token_hex(32)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.address = f"http://127.0.0.1:{_free_port()}"
        self._port = _free_port()
        self._num_cpus = num_cpus
        self._temporary = Path("/tmp") / f"ncp-ray-{secrets.token_hex(4)}"  # socket paths must be short
        self._log = folder / f"ray-{self._port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RayHead:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--head",
            "--block",
            f"--port={self._port}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.address.rpartition(':')[2]}",
            f"--temp-dir={self._temporary}",
            f"--num-cpus={self._num_cpus}",
            f"--object-store-memory={256 * 1024 * 1024}",
            "--disable-usage-stats",
        ]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**environment, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_answers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of this head, and wait until all are gone."""
        while pids := self._pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self._process is not None:
                self._process.poll()
            time.sleep(0.1)

    def _pids(self) -> list[int]:
        """Processes that name our temporary folder, or whose environment holds our token: workers and jobs too."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                named = str(self._temporary) in (entry / "cmdline").read_text()
                ours = self.token in (entry / "environ").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if status != "Z" and (named or ours):
                found.append(int(entry.name))
        return found

    def _wait_until_it_answers(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        request = urllib.request.Request(
            f"{self.address}/api/jobs/", headers={"Authorization": f"Bearer {self.token}"}
        )
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).read()
                return
            except OSError as error:
                if time.monotonic() > give_up:
                    self.kill()
                    raise AssertionError(f"ray did not start: {error}\n{self._log.read_text()}") from error
                time.sleep(0.3)


def _free_port() -> int:
    """A port outside Ray's worker range (10002 to 19999)."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port
