from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.data import loader as loader_module
from pipeline.data.errors import ShardError
from pipeline.data.loader import DIGEST_MODULUS, IGNORE_INDEX, WindowLoader
from pipeline.data.shard_cache import ShardCache
from pipeline.data.shards import map_tokens
from pipeline.storage import Storage

T = 64
G = 12


@pytest.fixture(scope="module")
def loader(stdlib_storage, code, prose) -> WindowLoader:
    return make(stdlib_storage, code, prose)


def make(storage, code, prose, **changes) -> WindowLoader:
    settings = {
        "outputs": {"code": code.output, "prose": prose.output},
        "weights": {"code": 0.25, "prose": 0.75},
        "block": 64,
        "seed": 7,
        "sequence_length": T,
        "global_batch_tokens": G * T,
    }
    return WindowLoader(storage=storage, **{**settings, **changes})


def global_batch(loader, step, world_size, micro_batch_size):
    """All real rows of a global batch, by position."""
    rows = {}
    for rank in range(world_size):
        done = 0
        for micro in loader.batch(step, rank, world_size, micro_batch_size):
            for row in range(micro.real):
                rows[rank + (done + row) * world_size] = micro.input_ids[row]
            done += micro.real
    return torch.stack([rows[i] for i in sorted(rows)])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(step=st.integers(0, 500), world_size=st.integers(1, 15), micro=st.integers(1, 14))
def test_a_global_batch_does_not_depend_on_world_size_or_micro_batch(loader, step, world_size, micro):
    assert torch.equal(global_batch(loader, step, world_size, micro), global_batch(loader, step, 1, G))
    batches = [loader.batch(step, rank, world_size, micro) for rank in range(world_size)]
    digests = sum(batch.digest for rank in batches for batch in rank) % DIGEST_MODULUS
    assert digests == loader.batch(step, 0, 1, G)[0].digest
    shapes = {tuple(batch.input_ids.shape for batch in rank) for rank in batches}
    assert len(shapes) == 1, "every rank makes the same number of equally shaped forward passes"
    assert all(shape[0] <= micro for shape in next(iter(shapes)))
    labels = sum(int((batch.labels != IGNORE_INDEX).sum()) for rank in batches for batch in rank)
    assert labels == loader.labels_per_batch


def test_labels_are_the_inputs_shifted_inside_the_window_and_padding_rows_have_none(loader):
    micros = loader.batch(0, 4, 5, 2)
    assert [micro.real for micro in micros] == [2, 0]
    for micro in micros:
        assert micro.input_ids.dtype == micro.labels.dtype == torch.int64
        assert torch.equal(micro.labels[: micro.real, :-1], micro.input_ids[: micro.real, 1:])
        assert (micro.labels[: micro.real, -1] == IGNORE_INDEX).all()
        assert (micro.labels[micro.real :] == IGNORE_INDEX).all()


def test_rows_are_the_windows_that_the_order_names(loader, stdlib_storage, code, prose):
    draws = loader.order.at(np.arange(3 * G, 4 * G))
    batch = loader.batch(3, 0, 1, G)[0]
    streams = {}
    for name, manifest in (("code", code), ("prose", prose)):
        streams[name] = [
            stream[i * T : (i + 1) * T]
            for entry in manifest.shards
            for stream in [map_tokens(stdlib_storage.local_path(f"{manifest.output}/{entry.key}"), entry)]
            for i in range(entry.tokens // T)
        ]
    for row in range(G):
        window = streams[loader.order.sources[draws.source[row]]][draws.window[row]]
        assert batch.input_ids[row].tolist() == window.tolist()


def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(loader, stdlib_storage, code, prose):
    ahead = [loader.batch(step, 1, 2, 3) for step in range(6)]
    resumed = make(stdlib_storage, code, prose)
    for step in (4, 5):
        for one, two in zip(ahead[step], resumed.batch(step, 1, 2, 3), strict=True):
            assert torch.equal(one.input_ids, two.input_ids) and one.digest == two.digest


def test_the_digest_tells_order_and_content_apart(loader, stdlib_storage, code, prose):
    other = make(stdlib_storage, code, prose, seed=8)
    digests = {loader.batch(step, 0, 1, G)[0].digest for step in range(5)}
    digests |= {other.batch(step, 0, 1, G)[0].digest for step in range(5)}
    assert len(digests) == 10 and all(0 <= digest < DIGEST_MODULUS for digest in digests)


def test_remote_shards_give_the_same_batches_by_ranged_reads(loader, stdlib_storage, code, prose):
    remote = Storage("memory://loader-test")
    for manifest in (code, prose):
        for key in stdlib_storage.keys(manifest.output):
            remote.write_bytes(key, stdlib_storage.read_bytes(key))
    other = make(remote, code, prose)
    assert torch.equal(other.batch(2, 0, 2, 6)[0].input_ids, loader.batch(2, 0, 2, 6)[0].input_ids)


class CountingStorage(Storage):
    """Memory storage that counts the bytes it gives out, and reads by hand so that nothing is local."""

    def __init__(self, url: str):
        super().__init__(url)
        self.fetched = 0

    def read_range(self, key, start, length):
        data = super().read_range(key, start, length)
        self.fetched += len(data)
        return data

    def open_read(self, key):
        self.fetched += self.size(key)
        return super().open_read(key)


@pytest.fixture
def counting(stdlib_storage, code, prose):
    remote = CountingStorage("memory://loader-count")
    for manifest in (code, prose):
        for key in stdlib_storage.keys(manifest.output):
            remote.write_bytes(key, stdlib_storage.read_bytes(key))
    return remote


def finish_reading_ahead(loader: WindowLoader) -> None:
    assert loader._ahead is not None
    loader._ahead[1].result()


def test_a_cache_too_small_for_the_mixture_is_left_alone_and_only_windows_are_fetched(
    counting, loader, code, prose, tmp_path, monkeypatch
):
    size = sum(entry.bytes for manifest in (code, prose) for entry in manifest.shards)
    monkeypatch.setattr(loader_module, "VERIFIED_REMOTE_BYTES", size - 1)
    remote = make(counting, code, prose, cache_dir=str(tmp_path / "cache"), cache_bytes=size // 100)
    for step in range(20):
        assert remote.batch(step, 0, 1, G)[0].digest == loader.batch(step, 0, 1, G)[0].digest
    finish_reading_ahead(remote)
    trained = 20 * G * T * 4
    assert trained <= counting.fetched <= 1.1 * trained
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("place", ["local", "remote", "cached"])
def test_a_flipped_bit_of_a_shard_is_found_before_its_first_window(
    counting, stdlib_storage, code, prose, tmp_path, place
):
    """Every shard of the mixture is tried: whichever it is, no window of it is ever given."""
    size = sum(entry.bytes for manifest in (code, prose) for entry in manifest.shards)
    storage = Storage(str(tmp_path / "copy")) if place == "local" else counting
    if place == "local":
        for manifest in (code, prose):
            for key in stdlib_storage.keys(manifest.output):
                storage.write_bytes(key, stdlib_storage.read_bytes(key))
    settings = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": size} if place == "cached" else {}
    key = f"{prose.output}/{prose.shards[0].key}"
    whole = storage.read_bytes(key)
    flipped = bytearray(whole)
    flipped[prose.shards[0].token_offset + 4 * prose.shards[0].tokens // 2] ^= 4
    try:
        storage.write_bytes(key, bytes(flipped))
        damaged = make(storage, code, prose, **settings)
        with pytest.raises(ShardError, match=f"{prose.shards[0].key}: "):
            for step in range(60):
                damaged.batch(step, 0, 1, G)
    finally:
        storage.write_bytes(key, whole)


def test_a_copy_in_the_cache_that_changed_is_fetched_anew(counting, loader, code, prose, tmp_path):
    size = sum(entry.bytes for manifest in (code, prose) for entry in manifest.shards)
    settings = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": size}
    make(counting, code, prose, **settings).batch(0, 0, 1, G)
    for file in (tmp_path / "cache").iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        beside = file.with_suffix(".new")  # in place would pull a file from under whoever has it mapped
        beside.write_bytes(content)
        beside.replace(file)
    remote = make(counting, code, prose, **settings)
    for step in range(20):
        assert remote.batch(step, 0, 1, G)[0].digest == loader.batch(step, 0, 1, G)[0].digest


def test_a_cache_that_holds_the_mixture_fetches_each_shard_once_and_is_shared(
    counting, loader, code, prose, tmp_path
):
    size = sum(entry.bytes for manifest in (code, prose) for entry in manifest.shards)
    for _ in range(2):
        remote = make(counting, code, prose, cache_dir=str(tmp_path / "cache"), cache_bytes=size)
        for step in range(60):
            assert remote.batch(step, 0, 1, G)[0].digest == loader.batch(step, 0, 1, G)[0].digest
    assert counting.fetched == sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) == size


def test_the_cache_never_grows_over_its_bound_and_refuses_a_shard_that_is_not_whole(counting, code, tmp_path):
    first, second, third = code.shards[:3]
    cache = ShardCache(str(tmp_path / "cache"), first.bytes + second.bytes)
    for entry in (first, second, third):
        cache.fetch(counting, code.output, entry)
    kept = {file.name for file in (tmp_path / "cache").iterdir()}
    assert f"{third.sha256}.arrow" in kept and f"{first.sha256}.arrow" not in kept
    counting.write_bytes(f"{code.output}/{first.key}", b"something else")
    with pytest.raises(ShardError, match="not the recorded shard"):
        cache.fetch(counting, code.output, first)
    assert {file.name for file in (tmp_path / "cache").iterdir()} == kept


def test_reading_ahead_changes_nothing_when_steps_are_skipped_or_repeated(counting, loader, code, prose):
    remote = make(counting, code, prose)
    for step, rank, world_size in (
        (0, 0, 1),
        (1, 0, 1),
        (5, 0, 1),
        (5, 0, 1),
        (6, 1, 2),
        (7, 1, 2),
        (2, 0, 3),
    ):
        one = remote.batch(step, rank, world_size, 4)
        two = loader.batch(step, rank, world_size, 4)
        assert [micro.digest for micro in one] == [micro.digest for micro in two]


def test_an_error_while_reading_ahead_comes_up_at_the_batch_that_needs_it(counting, code, prose):
    remote = make(counting, code, prose)
    remote.batch(0, 0, 1, G)
    finish_reading_ahead(remote)
    for key in counting.keys("steps"):
        if key.endswith(".arrow"):
            counting.delete(key)
    remote.batch(1, 0, 1, G)
    with pytest.raises(FileNotFoundError):
        remote.batch(2, 0, 1, G)


def test_the_fixed_batch_is_the_beginning_of_the_order(loader):
    assert torch.equal(loader.fixed_batch(G), loader.batch(0, 0, 1, G)[0].input_ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch_tokens": T - 1}, "global_batch_tokens: 63 is not a multiple of sequence_length 64"),
        ({"global_batch_tokens": T * 2 + 1}, "global_batch_tokens: 129"),
        ({"weights": {"code": 1.0, "math": 1.0}}, r"mixture\.math: the source has not been staged"),
        (
            {"sequence_length": 1 << 20, "global_batch_tokens": 1 << 20},
            r"mixture\.code: the source holds 0 windows",
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused(stdlib_storage, code, prose, changes, message):
    with pytest.raises(ValueError, match=message):
        make(stdlib_storage, code, prose, **changes)
