"""Records prove themselves: what is read is what was written, or a named error."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import DamagedRecord, decode_record, encode_record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
RECORD = {
    "stages": {"pretrain": 1, "mid": 2, "long": 3},
    "loss": 2.5,
    "files": [{"path": "a/b.arrow", "size": 10}],
}


@given(st.dictionaries(st.text().filter(lambda key: key != "record_sha256"), JSON, max_size=5))
def test_what_was_written_is_read_in_its_order(record: dict[str, Any]) -> None:
    read = decode_record(encode_record(record), "here")
    assert json.dumps(read) == json.dumps(record)


def test_one_flipped_bit_is_a_named_error_or_changes_nothing() -> None:
    data = encode_record(RECORD)
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert decode_record(bytes(flipped), "runs/a/run.json") == RECORD
        except DamagedRecord as error:
            assert "runs/a/run.json" in str(error)


def test_random_damage_is_never_another_record() -> None:
    draw = random.Random(0)
    data = encode_record(RECORD)
    for _ in range(2000):
        spoilt = bytearray(data)
        for _ in range(draw.randint(1, 8)):
            spoilt[draw.randrange(len(data))] = draw.randrange(256)
        with pytest.raises(DamagedRecord):
            assert decode_record(bytes(spoilt), "x") == RECORD
            raise DamagedRecord("unchanged")


def test_a_record_from_before_digests_is_read_as_it_is() -> None:
    assert decode_record(b'{"format": 1, "files": []}', "x") == {"format": 1, "files": []}


def test_numbers_that_json_has_no_form_for_are_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        encode_record({"loss": float("nan")})
