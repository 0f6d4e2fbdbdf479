"""The inside of the sandbox: a script of its own, run by `sandbox.run_program` with an empty environment.

Three processes. The *launcher* writes the id map of the user namespace and waits. Its child enters new user, mount,
process, network, IPC and UTS namespaces and forks the *init*, process 1 of the new process namespace: it builds a
root of read-only binds (the operating system's /usr and the Python installation, nothing else) and a private tmpfs,
pivots into it, and forks the *payload*, which takes limits, gives up every privilege and runs the program. When the
payload ends or its time is up, init ends, and the kernel kills whatever else is left in the namespace.

A program has passed if it reached its last line: then, and only then, the payload writes a random token into a pipe
that init reads (an exit status proves nothing, `os._exit(0)` has a fine one).

Nothing a program does may be more than its own failure: init ignores every signal that can be ignored, `started` is
told before the first line of the program runs, and whatever goes wrong after it is that program's verdict. Memory has one
limit for all processes of a program together: what they share and hold is watched, and the ways to hold memory that no
process maps (SysV segments, memfd, io_uring) are closed.

Standard library only, and nothing of ncp: it runs with `-I -S`, so the system-call filter is written out here, twenty
instructions, instead of asking a binding and its libseccomp, which the Python that runs this cannot see. Linux 5.12 or newer.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

NOBODY = 65534
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": (41, 53), "aarch64": (198, 199)}
"""socket, socketpair"""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6: all that a network without devices has. VSOCK would reach the host, ALG and NETLINK the kernel."""
_DENIED = {
    # shmget, semget, msgget, memfd_create, memfd_secret, io_uring_setup, add_key, request_key, keyctl, bpf,
    # perf_event_open, userfaultfd, mq_open
    "x86_64": (29, 64, 68, 319, 447, 425, 248, 249, 250, 321, 298, 323, 240),
    "aarch64": (194, 190, 186, 279, 447, 425, 217, 218, 219, 280, 241, 282, 180),
}
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
_PR_CAPBSET_DROP, _LAST_CAPABILITY = 24, 63
_DEVICES = ("null", "zero", "urandom")
_OUTPUT_TAIL = 2000
_STARTED = b"started\n"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _bind(source: str, target: str, *, read_only: bool) -> None:
    _mount(source, target, None, _MS_BIND | _MS_REC)
    if read_only:
        attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
        arguments = (
            ctypes.c_int(-100),
            target.encode(),
            ctypes.c_uint(_AT_RECURSIVE),
            attributes,
            ctypes.c_size_t(32),
        )
        _check(_libc.syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments), f"make {target} read-only")


def main() -> None:
    """Read the job from stdin, run it, write the verdict to stdout."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    job["started_as_root"] = os.geteuid() == 0
    if not job["isolated"]:
        os.write(1, _STARTED)
        _finish(_supervise(job, lambda: None))
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    verdict_read, verdict_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(verdict_read)
        _namespaces(job, ready_write, mapped_read, verdict_write)
    os.close(verdict_write)
    os.close(ready_write)
    if os.read(ready_read, 1) == b"1":
        _write_id_maps(child)
        os.write(mapped_write, b"1")
    os.close(mapped_write)
    told = False
    while block := os.read(verdict_read, 1 << 16):
        told = True
        os.write(1, block)
    os.waitpid(child, 0)
    if not told:
        _finish({"error": "the sandbox's first process died"})
    os._exit(0)


def _finish(verdict: dict[str, Any]) -> NoReturn:
    os.write(1, json.dumps(verdict).encode())
    os._exit(0)


def _write_id_maps(child: int) -> None:
    """Inside there is one id, nobody. Started as root it is the real nobody; else it is whoever started us."""
    if os.geteuid() == 0:
        user = group = NOBODY
    else:
        user, group = os.geteuid(), os.getegid()
        with open(f"/proc/{child}/setgroups", "w") as file:
            file.write("deny")
    for name, outer in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(f"{NOBODY} {outer} 1")


def _namespaces(job: dict[str, Any], ready: int, mapped: int, verdict: int) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
        _check(_libc.unshare(flags), "new namespaces")
        os.write(ready, b"1")
        os.close(ready)
        if os.read(mapped, 1) != b"1":
            raise OSError(0, "the id map could not be written")
        init = os.fork()
        if init == 0:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _init(job, verdict)
        os.close(verdict)
        os.waitpid(init, 0)
    except BaseException as error:
        _fail(verdict, error)
    os._exit(0)


def _fail(verdict: int, error: BaseException) -> None:
    os.write(verdict, json.dumps({"error": str(error) or type(error).__name__}).encode())


def _init(job: dict[str, Any], verdict: int) -> NoReturn:
    try:
        _build_root(job)
        os.write(verdict, _STARTED)
        result = _supervise(job, _drop_privileges)
        os.write(verdict, json.dumps(result).encode())
    except BaseException as error:
        _fail(verdict, error)
    os._exit(0)


def _build_root(job: dict[str, Any]) -> None:
    """A new root: read-only binds of the system and of Python, /dev with three devices, and a small /tmp."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    # Opened while still whoever started us: nobody may not be allowed to walk to a Python below somebody's home.
    sources = {path: os.open(path, os.O_PATH) for path in job["read_only"]}
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES}
    if job["started_as_root"]:
        os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _libc.prctl(_PR_SET_DUMPABLE, 1)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of ids forgets it
    root = "/tmp"
    _mount("sandbox", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for path, opened in sources.items():
        os.makedirs(root + path, exist_ok=True)
        _bind(f"/proc/self/fd/{opened}", root + path, read_only=True)
    for link, target in job["links"].items():
        os.symlink(target, root + link)
    os.mkdir(f"{root}/dev")
    for name, opened in devices.items():
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        _bind(f"/proc/self/fd/{opened}", f"{root}/dev/{name}", read_only=False)
    for opened in (*sources.values(), *devices.values()):
        os.close(opened)
    os.mkdir(f"{root}/proc")
    try:
        _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        os.rmdir(f"{root}/proc")  # a container that masks parts of its own /proc may not mount another
        job["limits"]["processes"] = 1  # several could not be watched together
    os.mkdir(f"{root}/old")
    os.mkdir(f"{root}/tmp")
    _check(
        _libc.syscall(ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), root.encode(), f"{root}/old".encode()),
        "pivot",
    )
    os.chdir("/")
    _check(_libc.umount2(b"/old", _MNT_DETACH), "leave the old root")
    os.rmdir("/old")
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # no second user namespace in which to be root
    except OSError:
        pass
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY, 0, 0, 0)
    arguments = (ctypes.c_int(-100), b"/", ctypes.c_uint(0), attributes, ctypes.c_size_t(32))
    _check(_libc.syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments), "make the root read-only")
    _mount("tmp", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={job['limits']['tmp_bytes']}")


def _drop_privileges() -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    # The caller's session keyring goes with fork and exec; a kernel without keyrings has none to leave.
    _libc.syscall(ctypes.c_long(_KEYCTL[os.uname().machine]), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
    _filter_system_calls()


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _filter_system_calls() -> None:
    """Refuse (EPERM) what holds memory or reaches others outside of all limits, and sockets of other families."""
    code = b"".join(
        number.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little")
        for number, yes, no, value in _filter_program(os.uname().machine)
    )
    instructions = ctypes.create_string_buffer(code, len(code))
    program = _Filter(len(code) // 8, ctypes.addressof(instructions))
    _check(
        _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "filter system calls"
    )


def _filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """Classic BPF: (operation, instructions to skip if true, if false, operand)."""
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse, no_family, kill = 0x7FFF0000, 0x00050001, 0x00050061, 0x80000000
    socket, socketpair = _SOCKET[machine]
    program = [
        (load, 0, 0, 4),  # the architecture: a call of another one has other numbers
        (equal, 1, 0, _AUDIT_ARCH[machine]),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),  # the call's number
        (at_least, 0, 1, 0x40000000),  # x32
        (answer, 0, 0, refuse),
    ]
    for number in _DENIED[machine]:
        program += [(equal, 0, 1, number), (answer, 0, 0, refuse)]
    program += [
        (equal, 2, 0, socket),
        (equal, 1, 0, socketpair),
        (answer, 0, 0, allow),
        (load, 0, 0, 16),  # the first argument: the family
    ]
    for family in _FAMILIES:
        program += [(equal, 0, 1, family), (answer, 0, 0, allow)]
    return [*program, (answer, 0, 0, no_family)]


def _supervise(job: dict[str, Any], prepare: Callable[[], None]) -> dict[str, Any]:
    """Fork the payload, wait for it within its time, and say how it ended."""
    limits = job["limits"]
    _ignore_signals()
    directory = "/tmp" if job["isolated"] else job["directory"]
    output = os.open(f"{directory}/.output", os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    token_read, token_write = os.pipe()
    program_read, program_write = os.pipe()
    payload = os.fork()
    if payload == 0:
        try:
            os.setsid()
            os.chdir(directory)
            os.dup2(program_read, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.dup2(token_write, 3)
            os.closerange(4, 1024)
            _set_limits(limits)
            prepare()
            _heed_signals()
            environment = {"PATH": "/usr/bin:/bin", "HOME": directory, "TMPDIR": directory, "LANG": "C.UTF-8"}
            os.execve(job["python"], [job["python"], "-I", "-S", "-c", _RUNNER], environment)
        except BaseException as error:
            os.write(2, f"the payload could not be started: {error}".encode())
        os._exit(127)
    os.close(token_write)
    os.close(program_read)
    _feed(program_write, f"{job['token']}\n{job['program']}".encode())
    status, stopped = _wait(payload, limits, watched=job["isolated"])
    if stopped:
        # Inside a process namespace that is everything but init; outside of one the payload's session.
        if job["isolated"]:
            os.kill(-1, signal.SIGKILL)
        else:
            os.killpg(payload, signal.SIGKILL)
        os.waitpid(payload, 0)
    os.set_blocking(token_read, False)
    try:
        passed = os.read(token_read, 256) == job["token"].encode()
    except BlockingIOError:
        passed = False
    size = os.fstat(output).st_size
    tail = os.pread(output, _OUTPUT_TAIL, max(0, size - _OUTPUT_TAIL)).decode(errors="replace")
    return {"passed": passed and status == 0, "status": status, "stopped": stopped, "output": tail}


def _signals() -> list[int]:
    return sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})


def _ignore_signals() -> None:
    """Of what a program may send to the process that judges it."""
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)


def _heed_signals() -> None:
    for number in _signals():
        signal.signal(number, signal.SIG_DFL)


def _feed(pipe: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(pipe, data) :]
    except BrokenPipeError:
        pass
    os.close(pipe)


def _wait(payload: int, limits: dict[str, Any], *, watched: bool) -> tuple[int | None, str]:
    """Exit status as `subprocess` counts it (negative: signal), or None and what ran out: timeout or memory."""
    deadline = time.monotonic() + limits["wall_seconds"]
    pause = 0.001
    while True:
        pid, status = os.waitpid(payload, os.WNOHANG)
        if pid == payload:
            return os.waitstatus_to_exitcode(status), ""
        if time.monotonic() > deadline:
            return None, "timeout"
        if watched and _memory_held(limits["memory_bytes"]) > limits["memory_bytes"]:
            return None, "memory"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.01)


def _memory_held(enough: int) -> int:
    """Bytes that all processes of the program hold, in memory and in swap; shared ones once where it matters.

    A page that several share counts for each of them at first; only if that is more than `enough` it is counted exactly.
    """
    found = [_kibibytes(f"/proc/{pid}/status", "VmRSS:", "VmSwap:") for pid in _others()]
    if sum(found) << 10 <= enough:
        return sum(found) << 10
    return sum(_kibibytes(f"/proc/{pid}/smaps_rollup", "Pss:", "SwapPss:") for pid in _others()) << 10


def _others() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    except OSError:
        return []


def _kibibytes(path: str, *names: str) -> int:
    try:
        with open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names))
    except (OSError, ValueError):
        return 0  # it ended


def _set_limits(limits: dict[str, Any]) -> None:
    for name, value in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(name, (value, value))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


_RUNNER = """
import os, sys
token, _, source = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").partition("\\n")
sys.argv = ["program"]
exec(compile(source, "program", "exec"), {"__name__": "__main__"})
os.write(3, token.encode())
"""

if __name__ == "__main__":
    main()
