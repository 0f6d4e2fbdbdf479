"""How long storage is waited for, and what its answers mean.

A store that does not answer (refused connections, silence, 5xx, SlowDown) is asked again, with exponential back-off and
jitter, for as long as is worth waiting: minutes while a run works, half a minute for a command that a person waits for,
less for what only watches. Then it is StorageUnavailable. A store that says no (no such bucket, wrong credentials) is
StorageRefused at once: asking again cannot help.

Every single request has a limit of its own, so a server that accepts and never answers counts as one that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from curriculum.errors import InputError

T = TypeVar("T")
VARIABLE = "NCP_STORAGE_PATIENCE"
WORK_SECONDS = 300.0
"""How long a run waits for storage that does not answer."""
LOOK_SECONDS = 30.0
"""The same for a command that only looks, or a run that has not begun."""
ANSWER_SECONDS = 20.0
"""How long one request may take, and besides as long as its body takes at SLOWEST_RATE."""
SLOWEST_RATE = 256 * 1024
"""Bytes a second."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two requests."""


class StorageError(InputError):
    """A storage URL that cannot be used. The message names the URL, what failed and what to do."""


class StorageRefused(StorageError):
    """Storage answered, and said no: no such bucket, wrong credentials, no right to write. Told at once, never retried."""


class StorageUnavailable(OSError):
    """Storage did not answer, or answered that it cannot now, for as long as was worth waiting. Infrastructure."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to ask for."""

    seconds: float
    """Until storage is given up."""
    answer_seconds: float = ANSWER_SECONDS
    """Until one request is."""


_PROCESS = [WORK_SECONDS]
_HERE: ContextVar[Patience | None] = ContextVar("ncp_storage_patience", default=None)


def set_patience(seconds: float) -> None:
    """The patience of this process, where the environment's NCP_STORAGE_PATIENCE does not say otherwise."""
    _PROCESS[0] = seconds


@contextlib.contextmanager
def patience(seconds: float, answer_seconds: float = ANSWER_SECONDS) -> Iterator[None]:
    """Within the block this thread waits at most `seconds` for storage, and never longer than the process would."""
    token = _HERE.set(Patience(seconds=seconds, answer_seconds=answer_seconds))
    try:
        yield
    finally:
        _HERE.reset(token)


def current_patience() -> Patience:
    """Raises StorageError for an NCP_STORAGE_PATIENCE that is no number of seconds."""
    text = os.environ.get(VARIABLE, "")
    try:
        process = float(text) if text else _PROCESS[0]
    except ValueError:
        process = -1.0
    if not (math.isfinite(process) and process >= 0):
        raise StorageError(f"{VARIABLE}: {text!r} is not a number of seconds; use one such as 300")
    here = _HERE.get()
    if here is None:
        return Patience(seconds=process)
    return Patience(seconds=min(here.seconds, process), answer_seconds=here.answer_seconds)


class _Asking:
    """One question to storage: what to do with each error, and when to give up."""

    def __init__(self, place: str, *, body: int = 0):
        self.place = place
        self.patience = current_patience()
        self.limit = self.patience.answer_seconds + body / SLOWEST_RATE
        self.began = time.monotonic()
        self.tries = 0

    def pause_after(self, error: BaseException) -> float:
        """Seconds until the next try. Raises what the error means when there is none."""
        refusal = refused(error)
        if refusal:
            raise StorageRefused(f"storage: {self.place}: {refusal}") from error
        if not away(error):
            raise error
        waited = time.monotonic() - self.began
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.tries, 30))
        self.tries += 1
        pause = longest * (0.5 + 0.5 * random.random())
        if waited + pause > self.patience.seconds:
            raise StorageUnavailable(
                f"storage: {self.place} did not answer for {waited:.0f} s ({reason(error)}); see whether it is "
                f"reachable, then give the command again ({VARIABLE}: seconds to wait, now {self.patience.seconds:g})"
            ) from error
        if waited >= 1.0:
            _OUTAGE.begins(self.place, error)
        return pause


def patiently(call: Callable[[], T], place: str) -> T:
    """The result of `call`, asked again while storage is away. Raises StorageUnavailable, StorageRefused, or its own error."""
    asking = _Asking(place)
    while True:
        try:
            result = call()
        except Exception as error:
            time.sleep(asking.pause_after(error))
        else:
            _OUTAGE.ends()
            return result


async def patiently_async(call: Callable[[], Awaitable[T]], place: str, *, body: int = 0) -> T:
    """As `patiently`, and each try ends after its limit. `body`: bytes that go with a request."""
    asking = _Asking(place, body=body)
    while True:
        try:
            async with asyncio.timeout(asking.limit):
                result = await call()
        except Exception as error:
            await asyncio.sleep(asking.pause_after(error))
        else:
            _OUTAGE.ends()
            return result


def away(error: BaseException) -> bool:
    """Whether the error says that storage does not answer, or cannot now."""
    status, code = _answer(error)
    if status is not None or code:
        return code in _BUSY or status == 429 or (status is not None and status >= 500 and status != 501)
    if isinstance(error, StorageUnavailable):
        return False  # somebody has waited already
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    return any(_named(kind) in _SILENCE for kind in type(error).__mro__)


def refused(error: BaseException) -> str:
    """What storage refuses and what to set, or an empty string."""
    _, code = _answer(error)
    if "NoSuchBucket" in (code, type(error).__name__):
        return "there is no such bucket; create it, or mend the name"
    if code in _CREDENTIALS:
        return f"the credentials are not accepted ({code}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if code in _DENIED:
        return f"access is denied ({code}); give these credentials the right, or set others (AWS_ACCESS_KEY_ID, AWS_PROFILE)"
    if code == "InvalidBucketName":
        return "this is no name of a bucket; write s3://BUCKET/PREFIX"
    names = {_named(kind) for kind in type(error).__mro__}
    if names & _NO_CREDENTIALS:
        return f"no credentials ({reason(error)}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if "certificate verify failed" in str(error).lower():
        return f"its certificate is not trusted ({reason(error)}); set AWS_CA_BUNDLE"
    return ""


def reason(error: BaseException) -> str:
    """One line of the error."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_BUSY = {
    "SlowDown",
    "RequestTimeout",
    "RequestTimeoutException",
    "Throttling",
    "ThrottlingException",
    "ServiceUnavailable",
    "InternalError",
    "OperationAborted",
    "TooManyRequestsException",
}
_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthFailure"}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "401", "Forbidden"}
_NO_CREDENTIALS = {
    "botocore.NoCredentialsError",
    "botocore.PartialCredentialsError",
    "botocore.CredentialRetrievalError",
    "botocore.ProfileNotFound",
    "botocore.TokenRetrievalError",
}
_SILENCE = {
    "botocore.ConnectionError",
    "botocore.HTTPClientError",
    "botocore.IncompleteReadError",
    "botocore.ResponseStreamingError",
    "botocore.ResponseParserError",
    "aiohttp.ClientError",
    "http.IncompleteRead",
    "http.BadStatusLine",
    "httpx.TransportError",
    "requests.ConnectionError",
    "requests.Timeout",
    "requests.ChunkedEncodingError",
    "urllib3.HTTPError",
    "socket.gaierror",
}


def _named(kind: type) -> str:
    """`package.Class`: the client libraries are not imported to tell their errors apart."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _answer(error: BaseException) -> tuple[int | None, str]:
    """HTTP status and error code of an answer that an error stands for; (None, "") when it stands for none."""
    for one in (error, error.__cause__):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response.get("Error", {}).get("Code", ""))
        status = getattr(response, "status_code", None)
        if isinstance(status, int):
            return status, str(status)
    return None, ""


class _Outage:
    """Says once that storage does not answer, and once that it does again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    def begins(self, place: str, error: BaseException) -> None:
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        _say(f"storage: {place} does not answer ({reason(error)}); asking again")

    def ends(self) -> None:
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _say(f"storage: answers again after {time.monotonic() - since:.0f} s")


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


_OUTAGE = _Outage()
