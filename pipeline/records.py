"""JSON records that prove themselves: every record carries the digest of what it says.

A record is a JSON object whose first key, `record_sha256`, is the digest of the rest in canonical form. It is added when the
record is encoded and checked and taken off when it is read, so that a flipped bit is a named error and never another
step number. The order of keys is kept as written: where order means something (stages, columns) it survives.

Records written before digests existed have none and are read as they are. Damage does not turn a record with a digest
into one of those: it would have to spoil half of the bytes that the digest begins with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from curriculum.errors import InputError

DIGEST = "record_sha256"
_MARK = "sha256:"
_PREFIX = f'{{\n "{DIGEST}": "{_MARK}'.encode()
"""How every record with a digest begins."""
_LINE_PREFIX, _LINE_END = f'{{"{DIGEST}": "{_MARK}'.encode(), b'"}\n'


class DamagedRecord(InputError):
    """A record whose bytes are not what was written. The message names the place."""


def encode_record(value: Any) -> bytes:
    """`value` as a JSON text with its digest first, keys in the order given. Only objects carry a digest.

    Raises ValueError for NaN and infinity, which JSON has no form for.
    """
    if isinstance(value, Mapping):
        value = {DIGEST: digest_of(value), **value}
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def decode_record(data: bytes, place: str) -> Any:
    """The value encoded in `data`, without its digest. Raises DamagedRecord naming `place`."""
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"{place}: not a JSON record ({error}); it is damaged or not ncp's") from error
    if not isinstance(value, dict):
        return value
    claimed = value.pop(DIGEST, None)
    if claimed is None:
        if _looks_sealed(data):
            raise DamagedRecord(f"{place}: the name of its digest is damaged; it is not what was written")
        return value
    if claimed != digest_of(value):
        raise DamagedRecord(f"{place}: its digest does not match; it is not what was written")
    return value


def digest_of(value: Mapping[str, Any]) -> str:
    """`sha256:` and the digest of `value` in canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(_jsonable(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _MARK + hashlib.sha256(text.encode()).hexdigest()


def seal_lines(body: bytes) -> bytes:
    """A text of lines with a first line that holds its digest, for logs and segments, which are no single JSON object."""
    return _LINE_PREFIX + hashlib.sha256(body).hexdigest().encode() + _LINE_END + body


def unseal_lines(data: bytes, place: str) -> bytes:
    """The lines without the first, proved by it; what was written without a digest as it is. Raises DamagedRecord naming `place`."""
    length = len(_LINE_PREFIX) + 64 + len(_LINE_END)
    head, body = data[:length], data[length:]
    if head == seal_lines(body)[:length]:
        return body
    if _looks_sealed(data, _LINE_PREFIX):
        raise DamagedRecord(f"{place}: its digest does not match; it is not what was written")
    return data


def _looks_sealed(data: bytes, prefix: bytes = _PREFIX) -> bool:
    """Whether most of the bytes that a digest begins with are there, so that its name or mark is what was damaged."""
    same = sum(ours == theirs for ours, theirs in zip(prefix, data, strict=False))
    return 2 * same > len(prefix)


def _jsonable(value: Any) -> Any:
    """As JSON would give it back: keys as text, tuples as lists, so that a digest survives the round trip."""
    if isinstance(value, Mapping):
        return {_key(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no form in JSON; write null and say why")
    return value


def _key(key: Any) -> str:
    """A key as `json` writes it."""
    return key if isinstance(key, str) else next(iter(json.loads(json.dumps({key: None}))))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
