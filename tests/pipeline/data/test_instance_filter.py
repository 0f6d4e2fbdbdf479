from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.instance_filter import RepetitionFilter
from pipeline.data.loader import IGNORE_INDEX, WindowLoader


def slow(row, rule: RepetitionFilter) -> bool:
    """The definition: some place from which a pattern of some period repeats often enough."""
    for period in range(rule.min_period, rule.max_period + 1):
        for start in range(len(row) - period * rule.max_count + 1):
            pattern = row[start : start + period]
            if row[start : start + period * rule.max_count] == pattern * rule.max_count:
                return True
    return False


@given(st.lists(st.sampled_from([1, 2]), min_size=30, max_size=30), st.integers(1, 4), st.integers(2, 6))
def test_the_filter_is_its_definition(row, max_period, max_count):
    rule = RepetitionFilter(max_period=max_period, max_count=max_count)
    assert rule.repeats(np.array([row], dtype=np.uint32))[0] == slow(row, rule)


@pytest.mark.parametrize(
    ("period", "count", "found"), [(1, 32, True), (1, 31, False), (13, 32, True), (14, 40, False)]
)
def test_olmo_cores_values(period, count, found):
    rng = np.random.default_rng(0)
    row = rng.permutation(100_000)[:2048].astype(np.uint32)
    row[100 : 100 + period * count] = np.tile(np.arange(period), count)
    assert RepetitionFilter().repeats(row[None])[0] == found


def test_masked_windows_keep_their_place_and_lose_their_labels(stage_files, store, lines):
    manifest = stage_files(
        {"a.jsonl": lines(*(f"one of many different texts, {i}" for i in range(50)), "ha" * 3000)}
    )
    settings = {
        "storage": store,
        "outputs": {"a": manifest.output},
        "weights": {"a": 1.0},
        "block": 4,
        "seed": 0,
        "sequence_length": 128,
        "global_batch_tokens": 128 * 16,
    }
    plain = WindowLoader(**settings).batch(0, 0, 1, 16)[0]
    filtered = WindowLoader(**settings, repetition_filter=RepetitionFilter()).batch(0, 0, 1, 16)[0]
    assert (filtered.input_ids == plain.input_ids).all() and filtered.digest == plain.digest
    masked = (filtered.labels == IGNORE_INDEX).all(dim=1)
    assert 0 < int(masked.sum()) == filtered.masked < 16 and plain.masked == 0
    assert (filtered.labels[~masked] == plain.labels[~masked]).all()
