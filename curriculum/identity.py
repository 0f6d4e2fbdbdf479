"""Canonical JSON, fingerprints, and the difference between two identities.

An identity is a tree of plain values. Its canonical form is JSON with sorted keys and no spaces; floats keep their
shortest exact form, so equal numbers hash equally on every machine. A part that is not known yet (a source that has
not been pinned) is the string UNKNOWN, and whatever contains it has no fingerprint yet.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from curriculum.fields import absent, yaml_name

UNKNOWN = "unknown until pinned"
"""Stands where a digest will be once its source is pinned."""


def identity_of(spec: Any) -> Any:
    """A specification as plain values under its recipe names, without the fields that are `absent_at` their value.

    So a field added to a specification later costs no stored output (curriculum.fields).
    """
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        values = {field: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        return {
            yaml_name(field.name): identity_of(value)
            for field, value in values.items()
            if not absent(field, value)
        }
    if isinstance(spec, Mapping):
        return {str(key): identity_of(item) for key, item in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [identity_of(item) for item in spec]
    return spec


def canonical_json(identity: Any) -> str:
    """One string for one meaning. Raises ValueError for NaN, infinity or a value that JSON has no form for."""
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(identity: Any) -> str:
    """sha256 of the canonical JSON in hex, or UNKNOWN when any part of the identity is."""
    if any(value == UNKNOWN for _, value in flatten(identity)):
        return UNKNOWN
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def flatten(identity: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves as (dotted path, value); an empty mapping or list is a leaf."""
    if isinstance(identity, Mapping) and identity:
        for key in sorted(identity):
            yield from flatten(identity[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(identity, (list, tuple)) and identity:
        for index, item in enumerate(identity):
            yield from flatten(item, f"{prefix}[{index}]")
    else:
        yield prefix, identity


def difference(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Leaves that differ, as (dotted path, old, new), sorted by path; a missing leaf is None."""
    before, after = dict(flatten(old)), dict(flatten(new))
    paths = sorted(before.keys() | after.keys())
    return [
        (path, before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)
    ]
