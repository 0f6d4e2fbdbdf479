"""Mixtures and statistics with hand-written gradients equal autograd's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ncp_model.mixing import State, mix, norm_statistics


def leaves(count: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(count)
    ]


def plain_mix(values: list[Tensor], weights: Tensor, offset: Tensor | None = None) -> Tensor:
    total = torch.stack([weights[..., i : i + 1] * value for i, value in enumerate(values)]).sum(0)
    return total if offset is None else total + offset


def gradients(loss: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, wanted))


@pytest.mark.parametrize("with_newest", [False, True])
@pytest.mark.parametrize("with_offset", [False, True])
def test_mix_is_the_weighted_sum(with_newest: bool, with_offset: bool) -> None:
    values = leaves(4, 2, 5, 8)
    (weights,), (offset,) = leaves(1, 2, 5, 4), leaves(1, 2, 5, 1)
    states = [State(v) for v in (values[:3] if with_newest else values)]
    newest = values[3] if with_newest else None
    actual = mix(states, weights, newest=newest, offset=offset if with_offset else None)
    expected = plain_mix(values, weights, offset if with_offset else None)
    torch.testing.assert_close(actual, expected)
    wanted = [*values, weights, *([offset] if with_offset else [])]
    torch.testing.assert_close(gradients(actual.sin().sum(), wanted), gradients(expected.sin().sum(), wanted))


def test_a_tower_of_mixtures_has_autograds_gradients() -> None:
    """Each state is read by every later layer, and directly by one consumer of its own."""
    (start,), weights, scales = leaves(1, 2, 3, 6), leaves(5, 2, 3, 6), leaves(5, 6)

    def run(
        reads: Callable[[Tensor], State], combine: Callable[[list[State], Tensor, Tensor], Tensor]
    ) -> Tensor:
        x, history = start, [reads(start)]
        for layer in range(5):
            raw = (x * scales[layer]).tanh() + x
            x = combine(history, raw, weights[layer][..., : layer + 2])
            history.append(reads(raw))
        return (x.square().sum() + sum(state.value.sin().sum() for state in history)).double()

    def plain_state(value: Tensor) -> State:
        state = State(value.detach())
        state.value = value
        return state

    actual = run(State, lambda history, raw, w: mix(history, w, newest=raw))
    expected = run(plain_state, lambda history, raw, w: plain_mix([*(s.value for s in history), raw], w))
    torch.testing.assert_close(actual, expected)
    wanted = [start, *weights, *scales]
    torch.testing.assert_close(gradients(actual, wanted), gradients(expected, wanted))


def test_backward_may_run_twice() -> None:
    values, (weights,) = leaves(3, 1, 2, 4), leaves(1, 1, 2, 3)
    loss = mix([State(v * 2) for v in values], weights).square().sum()
    first = torch.autograd.grad(loss, values, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, values), first)


def test_states_without_gradient_ask_for_none() -> None:
    value, (weights,) = torch.randn(1, 2, 4, dtype=torch.float64), leaves(1, 1, 2, 1)
    state = State(value)
    assert state.value is value
    mix([state], weights).sum().backward()
    assert not state.pending
    torch.testing.assert_close(weights.grad, value.sum(-1, keepdim=True))


def test_low_precision_states_are_summed_in_float32() -> None:
    values = [torch.full((1, 1, 4), 256.0, dtype=torch.bfloat16), torch.ones(1, 1, 4, dtype=torch.bfloat16)]
    states = [State(v.clone().requires_grad_()) for v in [*values, values[1], values[1]]]
    total = mix(states, torch.ones(1, 1, 4))  # 256 + 1 rounds to 256 in bfloat16
    assert total.dtype == torch.bfloat16
    assert total.float().tolist() == torch.full((1, 1, 4), 260.0).tolist()


def test_statistics_are_layer_norms() -> None:
    (x,) = leaves(1, 3, 4, 16)
    mean, rstd = norm_statistics(x, 1e-5)
    norm = nn.LayerNorm(16, eps=1e-5, elementwise_affine=False)
    expected = norm(x)
    actual = (x - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients(actual.sin().sum(), [x]), gradients(expected.sin().sum(), [x]))
