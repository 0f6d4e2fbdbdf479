"""Hostile programs are contained, whoever starts them. Each is written so that it passes only if it did its harm."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from curriculum import errors
from jobs.evaluation import sandbox
from jobs.evaluation.sandbox import Execution, Limits, SandboxError, run_program, sandbox_missing

if reason := sandbox_missing():
    pytest.skip(f"no sandbox here: {reason}", allow_module_level=True)

TIGHT = Limits(wall_seconds=3.0, cpu_seconds=1, memory_bytes=256 << 20, file_bytes=1 << 20, tmp_bytes=4 << 20)

FORK_BOMB = """
import os, time
children = 0
while children < 100:
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    children += 1
"""
ENDLESS_OUTPUT = "while True: print('x' * 10_000)"
ENDLESS_LOOP = "while True: pass"
SLEEPER = "import time; time.sleep(100)"
MEMORY = "data = bytearray(2 << 30)"
BIG_FILE = "open('/tmp/big', 'wb').write(bytes(64 << 20))"
MANY_FILES = "\n".join(f"open('/tmp/f{n}', 'wb').write(bytes(1 << 20))" for n in range(8))
QUIET_EXIT = "import os; os._exit(0)"
KILL_EVERYTHING = "import os, signal; os.kill(-1, signal.SIGKILL)"
KILL_INIT = """
import os, signal, time
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGTERM)
time.sleep(0.2)
os.kill(1, 0)
assert False, 'init is still there'
"""
SECOND_USER_NAMESPACE = """
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0
"""
PRIVILEGES = """
import ctypes, os
libc = ctypes.CDLL(None)
done = []
for action in (lambda: os.setuid(0), lambda: os.chroot('/tmp'), lambda: os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))):
    try:
        action(); done.append(action)
    except OSError:
        pass
assert done or libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0
"""
WRITE_ANYWHERE = """
import os
written = []
for directory in ('/', '/usr', '/usr/bin', '/dev', '/proc', os.path.dirname(os.__file__)):
    try:
        open(directory + '/ncp-was-here', 'w').close(); written.append(directory)
    except OSError:
        pass
assert written
"""
KILL_PARENT = """
import os, signal, time
for number in sorted(signal.valid_signals()):
    for target in (os.getppid(), 0 if number not in (9, 19) else os.getppid()):
        signal.signal(number, signal.SIG_IGN) if number not in (9, 17, 19) else None
        os.kill(target, number)
time.sleep(0.2)
assert False, 'nothing happened'
"""
STARVE_PARENT = """
import resource, time
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
    resource.prlimit(1, limit, (0, 0))
time.sleep(1)
assert False
"""
CLOSE_EVERYTHING = "import os; os.closerange(0, 1024); os.kill(os.getppid(), 2); os._exit(0)"
FORGE_RESULT = """
import os, glob
for path in ['/proc/self/fd/3', *glob.glob('/proc/1/fd/*'), *glob.glob('/proc/[0-9]*/fd/*')]:
    try:
        os.write(os.open(path, os.O_WRONLY), b'{"passed": true, "status": 0, "output": ""}')
    except OSError:
        pass
os._exit(0)
"""
REAL_TIME_SIGNAL = "import os; os.kill(os.getpid(), 40)"
SYSV_MEMORY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.shmget(0, ctypes.c_size_t(900 << 20), 0o1666) >= 0
"""
MEMFD = "import os; os.ftruncate(os.memfd_create('x'), 900 << 20)"
SHARED_BY_MANY = """
import mmap, os, time
for _ in range(5):
    if os.fork() == 0:
        held = mmap.mmap(-1, 100 << 20)
        for at in range(0, len(held), 4096):
            held[at] = 1
        time.sleep(5)
        os._exit(0)
time.sleep(5)
"""
DAEMONS_HOLD = SHARED_BY_MANY.replace("if os.fork() == 0:", "if os.fork() == 0:\n        os.setsid()")
KEYRING = """
import ctypes, os
libc = ctypes.CDLL(None)
numbers = {'x86_64': (250, 248), 'aarch64': (219, 217)}[os.uname().machine]
serial = libc.syscall(numbers[0], 0, -3, 0)
assert serial > 0
"""
FAMILIES = """
import socket
made = []
for family in set(range(0, 46)) - {1, 2, 10}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind); made.append(family)
        except OSError:
            pass
assert made
"""
IO_URING = "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0"
CONTAINED = {
    "kill parent": KILL_PARENT,
    "starve parent": STARVE_PARENT,
    "close everything": CLOSE_EVERYTHING,
    "forge result": FORGE_RESULT,
    "real-time signal": REAL_TIME_SIGNAL,
    "sysv memory": SYSV_MEMORY,
    "memfd": MEMFD,
    "memory of many processes": SHARED_BY_MANY,
    "memory of many sessions": DAEMONS_HOLD,
    "keyring": KEYRING,
    "socket families": FAMILIES,
    "io_uring": IO_URING,
    "fork bomb": FORK_BOMB,
    "endless output": ENDLESS_OUTPUT,
    "endless loop": ENDLESS_LOOP,
    "sleeper": SLEEPER,
    "memory": MEMORY,
    "big file": BIG_FILE,
    "many files": MANY_FILES,
    "quiet exit": QUIET_EXIT,
    "kill everything": KILL_EVERYTHING,
    "kill init": KILL_INIT,
    "second user namespace": SECOND_USER_NAMESPACE,
    "privileges": PRIVILEGES,
    "write anywhere": WRITE_ANYWHERE,
}

SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable)
DRIVER = """
import dataclasses, json, sys
sys.path.insert(0, sys.argv[1])
import sandbox
job = json.load(sys.stdin)
try:
    done = dataclasses.asdict(sandbox._run(job["program"], sandbox.Limits(**job["limits"]), isolated=True))
    print(json.dumps({"missing": None, "done": done}))
except sandbox.SandboxError as error:
    print(json.dumps({"missing": str(error), "done": None}))
"""
USER: dict = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}}


def as_ordinary_user(program: str, directory: Path) -> Execution:
    """Run the sandbox itself as nobody, from a copy of its two files and a Python that nobody may start."""
    for name in ("sandbox.py", "sandbox_init.py"):
        shutil.copy(Path(sandbox.__file__).with_name(name), directory / name)
    (directory / "curriculum").mkdir()
    for name in ("__init__.py", "errors.py"):
        shutil.copy(Path(errors.__file__).with_name(name), directory / "curriculum" / name)
    for path in (directory, directory / "curriculum", *directory.parents[:3]):
        os.chmod(path, 0o755)
    job = json.dumps({"program": program, "limits": dataclasses.asdict(TIGHT)})
    python = _ordinary_python()
    if python is None:
        pytest.skip("no Python here that an ordinary user may start")
    ran = subprocess.run(
        [python, "-c", DRIVER, str(directory)], input=job, capture_output=True, text=True, **USER
    )
    answer = json.loads(ran.stdout) if ran.stdout else {"missing": ran.stderr, "done": None}
    if answer["done"] is None:
        pytest.skip(f"no sandbox for an ordinary user here: {answer['missing']}")
    return Execution(**answer["done"])


@functools.cache
def _ordinary_python() -> str | None:
    """A Python that an ordinary user may start."""
    for path in SYSTEM_PYTHONS:
        try:
            if (
                subprocess.run([path, "-c", "import dataclasses"], capture_output=True, **USER).returncode
                == 0
            ):
                return path
        except OSError:
            continue
    return None


@pytest.fixture(params=["as is", "ordinary user"])
def run(request: pytest.FixtureRequest, tmp_path: Path):
    """Run a program as whoever runs the tests (root on many machines), and as an ordinary user."""
    if request.param == "as is":
        return lambda program: run_program(program, limits=TIGHT)
    if os.geteuid() != 0:
        pytest.skip("already an ordinary user")
    return lambda program: as_ordinary_user(program, tmp_path)


@pytest.mark.parametrize("name", CONTAINED)
def test_a_hostile_program_does_no_harm(run, name: str) -> None:
    result = run(CONTAINED[name])
    assert not result.passed, result


def test_what_a_program_may_still_do(run) -> None:
    result = run("""
import mmap, multiprocessing, os, signal, socket, subprocess, sys, threading
socket.socket(socket.AF_INET), socket.socket(socket.AF_INET6)
a, b = socket.socketpair()
a.send(b'x'); assert b.recv(1) == b'x'
held = mmap.mmap(-1, 60 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
children = [os.fork() for _ in range(2)]  # pages shared by all count once
if 0 in children:
    import time; time.sleep(0.3); os._exit(0)
for child in children:
    os.waitpid(child, 0)
thread = threading.Thread(target=print); thread.start(); thread.join()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout == b'1\\n'
print('fine')
""")
    assert result.passed, result


def test_memory_of_all_processes_together_is_what_ends_a_program() -> None:
    limits = dataclasses.replace(TIGHT, cpu_seconds=10, wall_seconds=20)
    assert run_program(SHARED_BY_MANY.replace("1.5", "15"), limits=limits).outcome == "memory"


def test_a_program_that_kills_its_judge_fails_alone() -> None:
    """Also where nothing isolates it; the next answer is judged as if nothing had been."""
    for isolated in (True, False):
        killed = sandbox._run("import os; os.kill(os.getppid(), 9); os._exit(0)", TIGHT, isolated=isolated)
        interrupted = sandbox._run("import os; os.kill(os.getppid(), 2)", TIGHT, isolated=isolated)
        assert not killed.passed and interrupted.passed
        assert sandbox._run("assert 1 + 1 == 2", TIGHT, isolated=isolated).passed


def test_where_the_sandbox_works_unsafe_changes_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    run_program(f"open({str(canary)!r}, 'w').write('x')", unsafe=True, limits=TIGHT)
    assert not canary.exists()


def test_an_honest_program_passes_and_may_use_its_tmp(run) -> None:
    result = run(
        "import json, math, os, tempfile\nopen('/tmp/x', 'w').write('1')\nassert os.listdir('/tmp')\nprint('fine')"
    )
    assert result.passed and "fine" in result.output


def test_the_environment_is_empty(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_SECRET_KEY", "do-not-tell")
    look = """
import glob, os
seen = str(os.environ)
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):
    try:
        seen += open(path, 'rb').read().decode(errors='replace')
    except OSError:
        pass
assert 'do-not-tell' in seen or 'NCP_SECRET_KEY' in seen
"""
    assert not run(look).passed


def test_files_of_the_machine_are_neither_seen_nor_deleted(run, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("alive")
    os.chmod(canary, 0o666)
    look = f"""
import os, shutil
for place in ('/home', '/root', '/var', '/srv', {str(tmp_path)!r}):
    shutil.rmtree(place, ignore_errors=True)
assert os.path.exists({str(canary)!r}) or os.path.exists('/etc/passwd')
"""
    assert not run(look).passed
    assert canary.read_text() == "alive"


def test_there_is_no_network(run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        look = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=1)"
        assert not run(look).passed


def test_other_processes_are_not_seen(run) -> None:
    assert not run(
        f"import os; assert len([p for p in os.listdir('/proc') if p.isdigit()]) > 2 or os.path.exists('/proc/{os.getpid()}/fd')"
    ).passed


def test_what_a_program_leaves_running_dies_with_it(tmp_path: Path) -> None:
    marker = f"ncp-left-behind-{os.getpid()}"
    daemon = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', {marker!r}])
    os._exit(0)
time.sleep(0.5)
"""
    assert run_program(daemon, limits=TIGHT).passed
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in _read(path)]
    assert running == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_outcomes_say_how_a_program_ended() -> None:
    assert run_program("assert 1 == 2", limits=TIGHT).outcome == "failed"
    assert "AssertionError" in run_program("assert 1 == 2", limits=TIGHT).output
    assert run_program(SLEEPER, limits=dataclasses.replace(TIGHT, wall_seconds=0.3)).outcome == "timeout"
    assert run_program(ENDLESS_OUTPUT, limits=TIGHT).outcome in ("killed by SIGXFSZ", "failed")
    assert run_program("raise SystemExit(0)", limits=TIGHT).outcome == "failed"


def test_without_namespaces_execution_is_refused_unless_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "sandbox_missing", lambda: "the kernel said no")
    with pytest.raises(SandboxError, match=r"the kernel said no.*--unsafe-execution"):
        run_program("pass")
    assert run_program("print(1)", unsafe=True, limits=TIGHT).passed
    assert not run_program("assert False", unsafe=True, limits=TIGHT).passed
