"""Places as people write them, checked before anything is made of them: a URL that is nearly one is not a folder."""

from __future__ import annotations

import re

from pipeline.answers import StorageError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_NEARLY = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(?P<mark>:/?|;/{0,2}|//|:\\\\?)(?P<rest>.*)", re.DOTALL
)
_OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "oci", "oss", "r2")
_READ_ONLY = ("http", "https", "ftp")
_SCHEMES = (*_OBJECTS, *_READ_ONLY, "file", "local", "memory")


def check_place(url: str) -> str:
    """`url` when it names a place that can hold a store or a source. Raises StorageError with the spelling that is meant."""
    if not url.strip():
        raise StorageError("storage: empty URL; give a directory or s3://bucket/prefix")
    if url != url.strip() or "\0" in url or "\n" in url:
        raise StorageError(
            f"storage: {url!r} has blanks or control characters around or in it; take them out"
        )
    if re.match(r"[A-Za-z0-9+.-]+::", url):
        raise StorageError(f"storage: {url!r} is a chain of filesystems; give the last one alone")
    match = _URL.fullmatch(url)
    if match is not None:
        _check_url(url, match["scheme"], match["rest"])
        return url
    nearly = _NEARLY.fullmatch(url)
    if nearly is not None and (nearly["scheme"].lower() in _SCHEMES or nearly["mark"] == ":/"):
        meant = f"{nearly['scheme'].lower()}://{nearly['rest'].lstrip('/')}"
        if nearly["scheme"].lower() in ("file", "local"):
            meant = f"/{nearly['rest'].lstrip('/')}"
        raise StorageError(
            f"storage: {url!r} is no URL; write {meant} (or ./{url} for a folder of that name)"
        )
    return url


def _check_url(url: str, scheme: str, rest: str) -> None:
    if scheme != scheme.lower():
        raise StorageError(f"storage: {url!r}: the scheme is written small; write {scheme.lower()}://{rest}")
    if scheme in _READ_ONLY:
        raise StorageError(
            f"storage: {url!r} can be neither written nor listed; use a directory or s3://bucket/prefix "
            "(for an S3 server of your own set AWS_ENDPOINT_URL to its address)"
        )
    if scheme in ("file", "local") and not rest.startswith("/"):
        raise StorageError(
            f"storage: {url!r} names a host {rest.partition('/')[0]!r}; write file:///{rest} or, below this folder, {rest}"
        )
    if scheme in _OBJECTS and not rest.partition("/")[0]:
        raise StorageError(
            f"storage: {url!r} names no bucket; write {scheme}://{rest.lstrip('/') or 'bucket/prefix'}"
        )
