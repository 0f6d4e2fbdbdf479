"""Running what a model wrote: one program in a sandbox of its own, thrown away afterwards (`sandbox_init`).

What a program finds: no privileges, one user id (nobody), an empty environment, no network but a loopback that is
down, processes of its own only, the operating system's /usr and Python read-only, and a small private /tmp. What it
may use: CPU seconds, memory, file size, processes and wall time, all limited. Whatever a program does to the processes
around it, it is that program's failure and nobody else's. Programs are *contained*, not
outwitted: one that inspects its own interpreter could still claim to have passed.

Where the kernel gives no such namespaces `run_program` refuses, unless told to run unsafely: then only the limits of a
single process hold. Where it gives them, `unsafe` changes nothing: it is a fallback.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curriculum.errors import InputError

_INIT = Path(__file__).with_name("sandbox_init.py")
_STARTED = b"started\n"
"""What the launcher says first once the program may have run."""


class SandboxError(InputError):
    """Programs cannot be contained here; says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use."""

    wall_seconds: float = 40.0
    """Longer than the CPU time, so that a busy machine does not fail an honest program."""
    cpu_seconds: int = 10
    memory_bytes: int = 512 << 20
    """Of all processes together; also the address space of each. What lies in /tmp is counted by `tmp_bytes`."""
    file_bytes: int = 8 << 20
    """Of each file, the captured output among them."""
    tmp_bytes: int = 32 << 20
    """Of all files together."""
    processes: int = 8


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a program ended."""

    passed: bool
    """It ran to its last line and exited with 0."""
    outcome: str
    """passed, failed, timeout, memory, or killed by <signal>."""
    output: str
    """The end of what it wrote to stdout and stderr."""


def run_program(source: str, *, limits: Limits | None = None, unsafe: bool = False) -> Execution:
    """Run Python source in a sandbox. Raises SandboxError where it cannot be contained, unless `unsafe`: there it runs
    without one."""
    require_sandbox(unsafe=unsafe)
    return _run(source, limits or Limits(), isolated=sandbox_missing() is None)


def require_sandbox(*, unsafe: bool = False) -> None:
    """Raise SandboxError where programs cannot be contained, unless `unsafe`."""
    if not unsafe and (reason := sandbox_missing()) is not None:
        raise SandboxError(
            f"execution: programs cannot be contained here ({reason}); run where unprivileged user namespaces are "
            "allowed, or pass --unsafe-execution in a container you can throw away"
        )


@functools.cache
def sandbox_missing() -> str | None:
    """Why programs cannot be contained here, or None if they can. Tried once, for real."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no namespaces"
    try:
        result = _run("import sys", Limits(wall_seconds=120.0, cpu_seconds=60), isolated=True)
    except SandboxError as error:
        return str(error)
    return (
        None
        if result.passed
        else f"a trivial program ended as {result.outcome!r}: {result.output.strip()[-200:]}"
    )


def _run(source: str, limits: Limits, *, isolated: bool) -> Execution:
    python = os.path.realpath(sys.executable)
    with tempfile.TemporaryDirectory(prefix="ncp-program-") as directory:
        job = {
            "isolated": isolated,
            "program": source.encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
            "token": secrets.token_hex(16),
            "python": python,
            "directory": directory,
            "limits": dataclasses.asdict(limits),
            **_system_paths(),
        }
        try:
            done = subprocess.run(
                [python, "-I", "-S", str(_INIT)],
                input=json.dumps(job).encode(),
                capture_output=True,
                env={},
                timeout=limits.wall_seconds + 60,
                start_new_session=True,  # what is sent to the program's group is not for ours
            )
        except subprocess.TimeoutExpired:
            return Execution(passed=False, outcome="timeout", output="the sandbox did not end in its time")
    started = done.stdout.startswith(_STARTED)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout.removeprefix(_STARTED))
    except ValueError:
        verdict = {"error": done.stderr.decode(errors="replace").strip()[-300:] or "the launcher died"}
    if "error" not in verdict:
        return Execution(passed=verdict["passed"], outcome=_outcome(verdict), output=verdict["output"])
    if started:  # the program's doing
        return Execution(passed=False, outcome="failed", output=f"the sandbox ended: {verdict['error']}")
    raise SandboxError(verdict["error"])


def _outcome(verdict: dict[str, Any]) -> str:
    status = verdict["status"]
    if verdict["passed"]:
        return "passed"
    if status is None:
        return verdict["stopped"]
    if status >= 0:
        return "failed"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"


@functools.cache
def _system_paths() -> dict[str, Any]:
    """Directories bound read-only, and the symbolic links of a merged /usr."""
    wanted = ["/usr", "/bin", "/sbin", "/lib", "/lib64", os.path.realpath(sys.base_prefix)]
    links = {path: os.readlink(path) for path in wanted if os.path.islink(path)}
    directories = [path for path in dict.fromkeys(wanted) if os.path.isdir(path) and path not in links]
    bound = [path for path in directories if not any(path.startswith(other + "/") for other in directories)]
    return {"read_only": bound, "links": links}
