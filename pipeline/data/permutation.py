"""Keyed bijections of [0, n) in constant memory, vectorised over numpy arrays.

A Feistel network over Z_a x Z_b with a*b just above n (the "FE1" construction of Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", 2002), walked along its cycle until it lands below n. Nothing is stored and nothing is
shuffled: the image of one index costs `ROUNDS` hash evaluations, whatever n is. That is what lets a stage of six
trillion tokens find its first batch, or its ten-millionth, in microseconds.

The key may differ per element, so that one call permutes indices of many blocks at once.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MAX_DOMAIN = 2**62
"""Sums of an index and a round value must stay below 2^64."""


def derive_key(*parts: str | int) -> int:
    """A 64-bit key from labels: stable across processes, platforms and Python versions."""
    text = "\x00".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix_keys(key: int, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One key per value (for instance per block number), derived from `key`."""
    return _mix64(_mix64(values + np.uint64(_GOLDEN)) ^ np.uint64(key))


def permute(indices: NDArray[np.uint64], size: int, keys: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """The image of each index under the bijection of [0, size) that `keys` selects (one, or one per index)."""
    return _walk(indices, size, keys, _encrypt)


def unpermute(images: NDArray[np.uint64], size: int, keys: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """The inverse of `permute`."""
    return _walk(images, size, keys, _decrypt)


def _walk(values, size, keys, step) -> NDArray[np.uint64]:
    if not 1 <= size <= _MAX_DOMAIN:
        raise ValueError(f"permutation: domain size {size} is outside [1, 2^62]")
    values = np.atleast_1d(np.asarray(values, dtype=np.uint64))
    if values.size and int(values.max()) >= size:
        raise ValueError(f"permutation: index {int(values.max())} is outside [0, {size})")
    keys = np.broadcast_to(np.asarray(keys, dtype=np.uint64), values.shape)
    left = math.isqrt(size - 1) + 1
    right = -(-size // left)
    result = step(values, left, right, keys)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = step(result[outside], left, right, keys[outside])
        outside = outside[result[outside] >= size]
    return result


def _encrypt(values, left: int, right: int, keys) -> NDArray[np.uint64]:
    a, b = np.divmod(values, np.uint64(right))
    for number in range(ROUNDS):
        if number % 2 == 0:
            a = (a + _round(b, keys, number, left)) % np.uint64(left)
        else:
            b = (b + _round(a, keys, number, right)) % np.uint64(right)
    return a * np.uint64(right) + b


def _decrypt(values, left: int, right: int, keys) -> NDArray[np.uint64]:
    a, b = np.divmod(values, np.uint64(right))
    for number in reversed(range(ROUNDS)):
        if number % 2 == 0:
            a = (a + np.uint64(left) - _round(b, keys, number, left)) % np.uint64(left)
        else:
            b = (b + np.uint64(right) - _round(a, keys, number, right)) % np.uint64(right)
    return a * np.uint64(right) + b


def _round(half, keys, number: int, modulus: int) -> NDArray[np.uint64]:
    salt = np.uint64((number + 1) * _GOLDEN % 2**64)
    return _mix64((half + salt) ^ keys) % np.uint64(modulus)


def _mix64(values) -> NDArray[np.uint64]:
    """Stafford's mix 13, the finaliser of splitmix64."""
    values = np.asarray(values, dtype=np.uint64)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
