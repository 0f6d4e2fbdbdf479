from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.order import Order, check_supply

GOLDEN_SOURCES = [1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]
GOLDEN_WINDOWS = [193, 270, 567, 141, 101, 102, 91, 93, 165, 995, 555, 852]

orders = st.builds(
    lambda sizes, weights, block, seed: Order(
        dict(zip("abcd", sizes, strict=False)), dict(zip("abcd", weights, strict=False)), block, seed
    ),
    st.lists(st.integers(1, 200), min_size=4, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(40, 120),
    st.integers(0, 2**63),
)


@given(orders, st.integers(0, 20))
def test_the_mixture_is_exact_in_every_block(order, block):
    draws = order.at(np.arange(block * order.block, (block + 1) * order.block))
    counted = np.bincount(draws.source, minlength=len(order.sources))
    assert dict(zip(order.sources, counted.tolist(), strict=True)) == order.counts


@settings(max_examples=30)
@given(orders)
def test_every_window_of_a_source_is_drawn_once_before_any_is_drawn_again(order):
    draws = order.at(np.arange(order.block * 12))
    for index, name in enumerate(order.sources):
        mine = draws.source == index
        for epoch in range(int(draws.epoch[mine].max()) + 1):
            windows = draws.window[mine & (draws.epoch == epoch)]
            assert len(set(windows.tolist())) == len(windows)
            if epoch < draws.epoch[mine].max():
                assert sorted(windows.tolist()) == list(range(order.windows[name]))


@given(orders, st.integers(1, 400), st.integers(1, 400))
def test_a_shorter_run_is_a_prefix_of_a_longer_one(order, shorter, longer):
    shorter, longer = sorted((shorter, longer))
    one, two = order.at(np.arange(shorter)), order.at(np.arange(longer))
    for field in ("source", "epoch", "window"):
        assert np.array_equal(getattr(one, field), getattr(two, field)[:shorter])


@given(orders, st.permutations(list(range(60))))
def test_a_position_means_the_same_however_it_is_asked_for(order, positions):
    asked = order.at(positions)
    assert asked.window.tolist() == order.at(np.arange(60)).window[positions].tolist()
    assert asked.source[0] == order.at(positions[0]).source[0]


@settings(max_examples=30)
@given(orders, st.integers(1, 600))
def test_positions_of_inverts_at(order, total):
    draws = order.at(np.arange(total))
    for index, name in enumerate(order.sources):
        for window in {0, order.windows[name] // 2, order.windows[name] - 1}:
            expected = np.flatnonzero((draws.source == index) & (draws.window == window)).tolist()
            assert order.positions_of(name, window, total) == expected


@given(orders, st.integers(0, 1000))
def test_draws_counts_what_at_draws(order, total):
    counted = np.bincount(order.at(np.arange(total)).source, minlength=len(order.sources)).tolist()
    assert order.draws(total) == dict(zip(order.sources, counted, strict=True))


def test_another_seed_is_another_order_and_epochs_are_ordered_differently():
    base = {"windows": {"a": 50, "b": 50}, "weights": {"a": 1, "b": 1}, "block": 20}
    one, two = Order(**base, seed=1), Order(**base, seed=2)
    assert one.at(np.arange(100)).window.tolist() != two.at(np.arange(100)).window.tolist()
    draws = one.at(np.arange(200))
    first, second = (draws.window[(draws.source == 0) & (draws.epoch == epoch)].tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) and first != second


def test_the_order_is_pinned_by_its_version():
    """If this fails, ORDER_VERSION must be bumped: running stages would silently change their data."""
    draws = Order({"code": 1000, "prose": 300}, {"code": 0.3, "prose": 0.7}, 16, 34521).at(np.arange(12))
    assert draws.source.tolist() == GOLDEN_SOURCES
    assert draws.window.tolist() == GOLDEN_WINDOWS


def test_trillions_of_tokens_need_no_memory_and_no_time_to_start():
    order = Order({"web": 725_000_000, "code": 30_000_000}, {"web": 0.93, "code": 0.07}, 65_536, 1)
    late = order.at(700_000_000 + np.arange(512))
    assert late.window.max() < 725_000_000
    name = order.sources[late.source[0]]
    assert 700_000_000 in order.positions_of(name, int(late.window[0]), 750_000_000)


def test_a_shortage_names_the_source_and_the_way_out():
    order = Order({"code": 10, "prose": 100}, {"code": 0.5, "prose": 0.5}, 8, 0)
    with pytest.raises(
        ValueError, match=r"mixture\.code: 20 windows are needed but the source holds 10 .*repeat"
    ):
        check_supply(order, range(40), 1.0, "error")
    assert check_supply(order, range(40), 2.0, "error") == {"code": 2.0, "prose": 0.2}
    assert check_supply(order, range(400), 1.0, "repeat")["code"] == 20.0


def test_a_stage_that_goes_on_with_its_parents_position_draws_what_is_left():
    order = Order({"code": 10, "prose": 100}, {"code": 0.5, "prose": 0.5}, 8, 0)
    assert check_supply(order, range(24, 40), 1.0, "error") == {"code": 0.8, "prose": 0.08}


def test_using_a_source_exactly_once_is_no_shortage():
    order = Order({"a": 7, "b": 5}, {"a": 7, "b": 5}, 12, 3)
    assert check_supply(order, range(12), 1.0, "error") == {"a": 1.0, "b": 1.0}


def test_a_source_without_windows_is_named():
    with pytest.raises(ValueError, match=r"mixture\.prose: the source holds 0 windows"):
        Order({"code": 10, "prose": 0}, {"code": 1, "prose": 1}, 8, 0)


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="on_shortage: 'ignore'"):
        check_supply(Order({"a": 1}, {"a": 1}, 1, 0), range(1), 1.0, "ignore")
