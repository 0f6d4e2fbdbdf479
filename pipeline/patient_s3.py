"""The S3 filesystem that everything here uses: every call is asked patiently, and no name is ever taken for a pattern.

Registered with fsspec in place of s3fs's own, so that torch's DCP, datasets and pyarrow, which open URLs themselves,
have it too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any, cast

import fsspec
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

from pipeline.answers import ANSWER_SECONDS, patiently_async

CLIENT = {
    "connect_timeout": 5,
    "read_timeout": ANSWER_SECONDS,
    "retries": {"total_max_attempts": 1},  # the patience is ours, and one
}
_SLOW = ("complete_multipart_upload", "copy_object", "upload_part_copy")
"""The server works on these itself, for as long as their objects are large."""
_SLOW_BYTES = 256 << 20


class PatientS3(S3FileSystem):
    """s3fs, with listings that never come from a cache: another host's lease would stay unseen.

    The endpoint is named although boto would find it: fsspec keeps one client per set of options, and would hand out one
    for an endpoint that the environment no longer names.
    """

    protocol = ("s3", "s3a")
    retries = 1

    def __init__(self, *args: Any, config_kwargs: dict[str, Any] | None = None, **options: Any):
        options.setdefault("use_listings_cache", False)
        super().__init__(*args, config_kwargs={**CLIENT, **(config_kwargs or {})}, **options)

    @staticmethod
    def _get_kwargs_from_urls(urlpath: str) -> dict[str, Any]:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return {"endpoint_url": endpoint} if endpoint else {}

    def split_path(self, path: str) -> tuple[str, str, str | None]:
        """Bucket and key, as they are: no `?versionId=` is cut off a name."""
        trail = path[len(path.rstrip("/")) :]  # other tools keep objects that are called "folder/"
        bucket, _, key = cast(str, self._strip_protocol(path)).lstrip("/").partition("/")
        return bucket, key + trail if key else key, None

    async def _call_s3(self, method: str, *akwarglist: Any, **kwargs: Any) -> Any:
        body = kwargs.get("Body")
        size = len(body) if isinstance(body, (bytes, bytearray, memoryview)) else 0
        bucket = kwargs.get("Bucket", "")
        unanswered = False

        async def call() -> Any:
            nonlocal unanswered
            try:
                response = await super(PatientS3, self)._call_s3(method, *akwarglist, **kwargs)
                if response.get("Errors"):
                    raise NotDeleted(response["Errors"])
                return await _whole(response) if method == "get_object" else response
            except FileNotFoundError:
                if method == "complete_multipart_upload" and unanswered and await self._is_complete(kwargs):
                    return {}
                raise
            except BaseException:
                unanswered = True
                raise

        return await patiently_async(
            call,
            f"s3://{bucket} at {self._place()}",
            body=max(size, _SLOW_BYTES if method in _SLOW else 0, _expected(method, kwargs)),
        )

    # s3fs's own is bound to s3fs's own method, so what is written through an open file would not be asked patiently.
    call_s3 = sync_wrapper(_call_s3)

    async def _is_complete(self, upload: dict[str, Any]) -> bool:
        """Whether an upload whose completion was not answered was completed all the same: the object has its tag."""
        parts = upload["MultipartUpload"]["Parts"]
        try:
            digest = hashlib.md5(b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts))
            found = await super()._call_s3("head_object", Bucket=upload["Bucket"], Key=upload["Key"])
        except (ValueError, FileNotFoundError):
            return False
        return found["ETag"].strip('"') == f"{digest.hexdigest()}-{len(parts)}"

    async def _expand_path(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> list[str]:
        """The very names given, and with `recursive` what lies below them. Raises FileNotFoundError for none."""
        names = [path] if isinstance(path, str) else list(path)
        found: set[str] = set()
        for name in (cast(str, self._strip_protocol(name)) for name in names):
            if recursive:
                found.update(await self._find(name, maxdepth=maxdepth, withdirs=False))
            else:
                found.add(name)
        if not found:
            raise FileNotFoundError(names)
        return sorted(found)

    def _place(self) -> str:
        return self.endpoint_url or "AWS"


class NotDeleted(OSError):
    """Of many objects that were to be deleted at once, some were not, which S3 tells in a good answer."""

    def __init__(self, errors: list[dict[str, str]]):
        first = errors[0]
        super().__init__(
            f"{len(errors)} not deleted; {first.get('Key')}: {first.get('Code')} {first.get('Message', '')}"
        )
        self.response = {"Error": first}


class _Body:
    """A response's body that was read already."""

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    async def read(self, amount: int | None = None) -> bytes:
        end = len(self._data) if amount is None or amount < 0 else self._at + amount
        piece = self._data[self._at : end]
        self._at += len(piece)
        return piece

    def close(self) -> None:
        pass


async def _whole(response: Any) -> Any:
    """The response with its body read, so that a connection which breaks in the middle is one more try."""
    async with response["Body"] as stream:
        data = await stream.read()
    return {**response, "Body": _Body(data)}


def _expected(method: str, kwargs: dict[str, Any]) -> int:
    """Bytes that an answer may hold, for its limit: of a ranged read its length, of a whole one a whole shard."""
    if method != "get_object":
        return 0
    first, _, last = str(kwargs.get("Range", "")).removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1 if first.isdigit() and last.isdigit() else _SLOW_BYTES


def register() -> None:
    """Give fsspec this class for s3:// and s3a://."""
    for protocol in ("s3", "s3a"):
        fsspec.register_implementation(protocol, PatientS3, clobber=True)
