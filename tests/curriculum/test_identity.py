"""Fingerprints: equal for equal meaning, different for any difference, unknown while a part is unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.fields import declared
from curriculum.identity import UNKNOWN, canonical_json, difference, fingerprint, flatten, identity_of

_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_trees = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=4), _trees, max_size=4))
def test_key_order_does_not_matter(tree: dict[str, Any]) -> None:
    assert fingerprint(dict(reversed(tree.items()))) == fingerprint(tree)


@given(_trees, _trees)
def test_trees_differ_exactly_when_their_fingerprints_do(a: Any, b: Any) -> None:
    assert (fingerprint(a) == fingerprint(b)) == (canonical_json(a) == canonical_json(b))


@given(_trees, _trees)
def test_difference_is_empty_for_equal_trees_and_names_only_changed_paths(a: Any, b: Any) -> None:
    assert difference(a, a) == []
    before, after = dict(flatten(a)), dict(flatten(b))
    for path, old, new in difference(a, b):
        assert before.get(path) == old and after.get(path) == new and old != new


def test_an_unknown_part_makes_the_whole_unknown() -> None:
    assert fingerprint({"a": [1, {"b": UNKNOWN}]}) == UNKNOWN


def test_a_difference_is_a_dotted_path_with_old_and_new() -> None:
    old = {"optimizer": {"lr": 0.1}, "layers": [1, 2]}
    new = {"optimizer": {"lr": 0.2}, "layers": [1, 2], "seed": 3}
    assert difference(old, new) == [("optimizer.lr", 0.1, 0.2), ("seed", None, 3)]


def test_nan_has_no_identity() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"lr": float("nan")})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Before:
    lr: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class _After(_Before):
    nesterov: bool = declared(True, absent_at=True)


def test_a_field_added_later_moves_no_fingerprint_at_the_value_it_is_absent_at() -> None:
    assert fingerprint(identity_of(_After())) == fingerprint(identity_of(_Before()))
    assert fingerprint(identity_of(_After(nesterov=False))) != fingerprint(identity_of(_Before()))
