"""A run's log in storage, so that it outlives the terminal, the job and the head node.

`runs/{run}/log/{session:06d}/{part:06d}.txt` are immutable parts, closed every few seconds; a session is one `ncp run`. A part's
first line holds the digest of the rest; a damaged part is shown all the same, with a line that says so.
"""

from __future__ import annotations

import codecs
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from curriculum.errors import RecipeError, nearest
from jobs.runs.record import read_run
from jobs.runs.recorded import reading
from jobs.runs.status import run_status
from pipeline.answers import patience
from pipeline.claim import claim_number
from pipeline.records import DamagedRecord, seal_lines, unseal_lines
from pipeline.redaction import redact
from pipeline.storage import Storage

PART_SECONDS = 3.0
LOG_SECONDS = 5.0
"""How long a part waits for storage that does not answer; it is tried again with the next."""
TAIL_LINES = 200
TAIL_BYTES = 64 * 1024
"""How much the end of a log is (`log_tail`)."""
GRACE_SECONDS = 30.0
"""How long a follower waits for somebody to work on the run: before it starts, between two steps, between two attempts."""


class RunLog:
    """Takes lines and writes them in parts. A context manager; safe to use from several threads.

    A storage that refuses a part ends no run: its lines are kept and written with the next part. It is said on stderr.
    """

    def __init__(self, storage: Storage, run: str):
        self._storage = storage
        self._folder = _claim_session(storage, run)
        self._lines: list[str] = []
        self._parts = 0
        self.refused = False
        """Whether storage did not take the last part."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, name="run-log", daemon=True)

    def __enter__(self) -> RunLog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.add(f"ended by {type(error).__name__}: {error}")
        elif error is not None:
            self.add("stopped by a signal")
        self._over.set()
        self._thread.join()
        self._flush()
        if self._lines:
            print(f"the last {len(self._lines)} lines of the run's log were not written", file=sys.stderr)

    def add(self, line: str) -> None:
        """One line, stamped with the time (UTC). Any text goes through."""
        with self._lock:
            self._lines.append(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {redact(line)}\n")

    def _flush_regularly(self) -> None:
        while not self._over.wait(PART_SECONDS):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            lines = list(self._lines)
        if not lines:
            return
        try:
            with patience(LOG_SECONDS, LOG_SECONDS):
                self._storage.write_bytes(
                    f"{self._folder}/{self._parts:06d}.txt", seal_lines(encoded("".join(lines)))
                )
        except Exception as error:  # whatever it is: a log ends no run
            if not self.refused:
                print(
                    f"the run's log could not be written, and will be tried again: {error}", file=sys.stderr
                )
            self.refused = True
            return
        with self._lock:
            del self._lines[: len(lines)]
        self._parts += 1
        self.refused = False


def read_part(storage: Storage, key: str) -> bytes:
    """The text of one part, with a line before it if it is damaged."""
    data = storage.read_bytes(key)
    try:
        return unseal_lines(data, storage.uri(key))
    except DamagedRecord as error:
        return f"[damaged: {error}]\n".encode() + data


def read_run_log(
    storage: Storage, run: str, *, follow: bool = False, grace: float = GRACE_SECONDS
) -> Iterator[str]:
    """The log's text in pieces, oldest first; with `follow` it goes on until the run is done or nobody works on it.

    Nobody works on it when no step was held for `grace` seconds. Raises RecipeError for an unknown run.
    """

    with contextlib.suppress(DamagedRecord):  # its log may still say what it was
        read_run(storage, run)
    seen: set[str] = set()
    text = codecs.getincrementaldecoder("utf-8")("replace")
    worked = time.monotonic()
    while True:
        state = run_status(storage, run).state if follow else "done"
        if state == "running":
            worked = time.monotonic()
        over = state == "done" or time.monotonic() - worked > grace
        for key in storage.keys(f"runs/{run}/log"):
            if key.endswith(".txt") and key not in seen:
                seen.add(key)
                yield text.decode(read_part(storage, key))
        if over:
            if rest := text.decode(b"", final=True):
                yield rest
            return
        time.sleep(1.0)


def read_step_log(storage: Storage, run: str, step: str) -> Iterator[str]:
    """What is kept of a step's attempts: failures with their tracebacks, and stacks of workers that stood still."""

    keys = {item["name"]: item["key"] for item in read_run(storage, run)["steps"]}
    if step not in keys:
        raise RecipeError(f"step: {step!r} is not in run {run!r}; {nearest(step, keys)}")
    for key in storage.keys(f"{keys[step]}/failures"):
        try:
            with reading(storage.uri(key)):
                failure = storage.read_json(key)
                attempt = int(key.rpartition("/")[2][:6])
                text = f"attempt {attempt} ({failure['class']}): {failure['error']}\n{failure['traceback']}\n"
        except DamagedRecord as error:
            text = f"{error}\n"
        yield text
    for key in storage.keys(f"{keys[step]}/stacks"):
        yield f"{key.rpartition('/')[2]}\n{storage.read_bytes(key).decode(errors='replace')}\n"


def encoded(text: str) -> bytes:
    """UTF-8 of any text, also of one that holds halves of a surrogate pair (bytes of a file name, a broken message)."""
    return text.encode(errors="backslashreplace")


def _claim_session(storage: Storage, run: str) -> str:
    folder = f"runs/{run}/log"
    session = claim_number(storage, lambda number: f"{folder}/{number:06d}/start.json", {"at": time.time()})
    return f"{folder}/{session:06d}"


def log_tail(storage: Storage, run: str, *, lines: int = TAIL_LINES, max_bytes: int = TAIL_BYTES) -> str:
    """The end of a log, at a cost that does not grow with it: the newest lines, whole ones, of the newest sessions; empty when nothing was logged yet."""
    prefix, found = f"runs/{run}/log", b""
    for session in reversed(storage.children(prefix)):
        for part in reversed(storage.children(f"{prefix}/{session}")):
            if part.endswith(".txt"):
                found = read_part(storage, f"{prefix}/{session}/{part}") + found
            if len(found) > max_bytes or found.count(b"\n") > lines:
                break
        else:
            continue
        break
    kept = found[-max_bytes:].decode(errors="replace").splitlines()
    if len(found) > max_bytes:
        kept = kept[1:]  # the cut may have gone through a line
    return "".join(f"{line}\n" for line in kept[-lines:])
