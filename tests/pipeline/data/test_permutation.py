from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.permutation import derive_key, mix_keys, permute, unpermute


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_every_index_has_one_image_and_comes_back(size, key):
    indices = np.arange(size, dtype=np.uint64)
    images = permute(indices, size, key)
    assert np.array_equal(np.sort(images), indices)
    assert np.array_equal(unpermute(images, size, key), indices)


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_large_domains_come_back_too(size, key, data):
    indices = np.array(
        data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)), dtype=np.uint64
    )
    images = permute(indices, size, key)
    assert int(images.max()) < size
    assert np.array_equal(unpermute(images, size, key), indices)


def test_a_key_per_element_is_the_same_as_one_call_per_key():
    indices = np.arange(100, dtype=np.uint64) % 10
    keys = mix_keys(7, np.arange(100, dtype=np.uint64) // 10)
    together = permute(indices, 10, keys)
    apart = np.concatenate([permute(indices[i : i + 1], 10, int(keys[i])) for i in range(100)])
    assert np.array_equal(together, apart)


def test_keys_give_different_permutations_and_labels_do_not_run_together():
    indices = np.arange(1000, dtype=np.uint64)
    assert not np.array_equal(permute(indices, 1000, 1), permute(indices, 1000, 2))
    assert derive_key("a", "bc") != derive_key("ab", "c")


def test_images_are_spread_evenly():
    """Over many keys every index lands in every tenth of the domain about equally often (chi-squared, 9 df)."""
    keys = mix_keys(3, np.arange(20_000, dtype=np.uint64))
    images = permute(np.full(20_000, 17, dtype=np.uint64), 1000, keys)
    observed = np.bincount((images // 100).astype(int), minlength=10)
    assert ((observed - 2000) ** 2 / 2000).sum() < 28


def test_neighbours_do_not_stay_neighbours():
    images = permute(np.arange(100_000, dtype=np.uint64), 100_000, 11).astype(np.int64)
    assert np.mean(np.abs(np.diff(images)) < 100) < 0.01
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.02


@pytest.mark.parametrize(("index", "size"), [(5, 5), (0, 0), (0, 2**63)])
def test_an_index_or_domain_out_of_range_is_refused(index, size):
    with pytest.raises(ValueError, match="outside"):
        permute(np.array([index], dtype=np.uint64), size, 1)
