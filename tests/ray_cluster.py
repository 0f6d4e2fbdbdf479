"""A real Ray cluster of our own on this machine, to be submitted to and killed: a head, and worker nodes that join it.

Every node is a `ray start --block` with a loopback address of its own, so that Ray takes them for different machines.
Never `ray stop`: processes are ended by PID, and found by a mark that each inherits in its environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS = 300
STARTS = 4
"""`ray start` gives up on a raylet after 30 seconds, which a machine that is busy with other tests may well need."""
MARK = "NCP_TEST_NODE"
OBJECT_STORE_BYTES = 128 * 1024 * 1024
AUTOSCALED_HEAD = "f" * 51 + "0" * 5
"""The name under which Ray's autoscaler for tests knows the head."""


class RayNode:
    """One node and every process that descends from it. A context manager that leaves none behind."""

    def __init__(self, log: Path, options: list[str], environment: dict[str, str]):
        self.mark = secrets.token_hex(8)
        # Of its own, as on a machine of its own: nodes that share one unpack shipped code over each other's working directories,
        # and a process whose directory was replaced ends when it loads MKL. Short, for the sockets in it.
        self._temporary = Path("/tmp") / f"ncp-ray-{secrets.token_hex(4)}"
        self._options, self._environment, self._log = options, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node; returns at once."""
        # Without our PYTHONPATH: what a node runs of ours must have been shipped to it.
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and name != "PYTHONPATH"
        }
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *command,
                    f"--object-store-memory={OBJECT_STORE_BYTES}",
                    f"--temp-dir={self._temporary}",
                    f"--dashboard-agent-listen-port={free_port()}",  # its default is the same for all of a host
                    *self._options,
                ],
                env={**clean, **self._environment, MARK: self.mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to the raylet, its workers and whatever else runs here, as when a machine is lost; waits until all are gone."""
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self._process is not None:
                self._process.poll()
            time.sleep(0.1)

    def pids(self, name: str = "") -> list[int]:
        """Processes of this node whose command line holds `name`."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_text()
                ours = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if status != "Z" and ours and name in command:
                found.append(int(entry.name))
        return found

    def __enter__(self) -> RayNode:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _wait(self, ready: Callable[[], bool]) -> None:
        give_up, starts = time.monotonic() + START_SECONDS, 1
        while not ready():
            ended = self._process is not None and self._process.poll() is not None
            if ended and starts < STARTS:
                self.kill()
                self.start()
                starts += 1
            elif ended or time.monotonic() > give_up:
                self.kill()
                raise AssertionError(f"ray did not start:\n{self._log.read_text()}")
            time.sleep(0.3)


class RayHead(RayNode):
    """A head node with a job server at `address`, and a token that `environment` holds.

    `grows_by`: Ray's real autoscaler adds one node of so many CPUs when work asks for it.
    """

    def __init__(self, folder: Path, *, num_cpus: int = 2, grows_by: int = 0):
        self.token = secrets.token_hex(32)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.address = f"http://127.0.0.1:{free_port()}"
        port = free_port()
        self.gcs_address = f"127.0.0.1:{port}"
        client_port = free_port()
        self.client_address = f"ray://127.0.0.1:{client_port}"
        options = [
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={port}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.address.rpartition(':')[2]}",
            f"--ray-client-server-port={client_port}",
            f"--num-cpus={num_cpus}",
        ]
        environment = dict(self.environment)
        if grows_by:
            config = folder / "autoscaler.json"
            config.write_text(json.dumps(_autoscaler(self.gcs_address, grows_by)))
            options.append(f"--autoscaling-config={config}")
            environment |= {
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
                "RAY_FAKE_CLUSTER": "1",
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": AUTOSCALED_HEAD,
            }
        super().__init__(folder / f"ray-{port}.log", options, environment)

    def __enter__(self) -> RayHead:
        self.start()
        self._wait(self._answers)
        return self

    def nodes(self) -> list[dict[str, str]]:
        """What the cluster says of its nodes: `node_ip`, `state` and more."""
        return json.loads(self._get("/api/v0/nodes"))["data"]["result"]["result"]

    def _answers(self) -> bool:
        try:
            self._get("/api/jobs/")
        except OSError:
            return False
        return True

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(
            f"{self.address}{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        return urllib.request.urlopen(request, timeout=5).read()


class RayWorker(RayNode):
    """A worker node of `head` with the loopback address `ip`. Entering waits until the head knows it."""

    def __init__(self, folder: Path, head: RayHead, *, ip: str, num_cpus: int = 2):
        self._head, self._ip = head, ip
        options = [f"--address={head.gcs_address}", f"--node-ip-address={ip}", f"--num-cpus={num_cpus}"]
        super().__init__(folder / f"ray-{ip}.log", options, head.environment)

    def __enter__(self) -> RayWorker:
        self.start()
        self._wait(self._known)
        return self

    def drain(self) -> None:
        """Say to the cluster that this machine is about to be taken away, as an autoscaler does for a spot instance."""
        command = [
            *(str(Path(sys.executable).parent / "ray"), "drain-node"),
            f"--address={self._head.gcs_address}",
            f"--node-id={self._state()['node_id']}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=the machine will be taken away",
            "--deadline-remaining-seconds=600",
        ]
        subprocess.run(command, env={**os.environ, **self._head.environment}, check=True)

    def _known(self) -> bool:
        return self._state().get("state") == "ALIVE"

    def _state(self) -> dict[str, str]:
        """What the cluster says of this node; nothing before it joined."""
        return next((node for node in self._head.nodes() if node["node_ip"] == self._ip), {})


def _autoscaler(gcs_address: str, cpus: int) -> dict[str, Any]:
    """A cluster-launcher file whose machines are raylets on this one (Ray's own provider for tests)."""
    worker = {"CPU": cpus, "object_store_memory": OBJECT_STORE_BYTES}
    return {
        "cluster_name": "growing",
        "max_workers": 1,
        "idle_timeout_minutes": 10,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": gcs_address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": 1},
        },
    }


def free_port() -> int:
    """A port outside Ray's worker range (10002 to 19999)."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port
