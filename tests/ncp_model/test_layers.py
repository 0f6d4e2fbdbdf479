"""Norms, rotations and masks against their definitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ncp_model.layers import RMSNorm, apply_rotary, rotary_angles, visibility


def gradients(loss: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, wanted))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_and_its_gradient(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(24, 1e-3).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(24, generator=generator))
    x = torch.randn(2, 3, 24, generator=generator).to(dtype).requires_grad_()
    actual, expected = norm(x), F.rms_norm(x, (24,), norm.weight, 1e-3)
    torch.testing.assert_close(actual, expected)
    wanted = [x, norm.weight]
    torch.testing.assert_close(gradients(actual.sin().sum(), wanted), gradients(expected.sin().sum(), wanted))


def test_rms_norm_of_heads() -> None:
    norm = RMSNorm(8, 1e-6)
    torch.nn.init.ones_(norm.weight)
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (8,), None, 1e-6))
    norm(x).sum().backward()


def test_rotation_is_by_position_and_its_gradient_is_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 8, generator=generator, requires_grad=True)
    cos, sin = rotary_angles(torch.arange(7), 8, 500_000.0)
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(cos), torch.atan2(sin, cos))
    expected = torch.cat((pairs.real, pairs.imag), dim=-1)
    actual = apply_rotary(x, cos, sin)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients(actual.sin().sum(), [x]), gradients(expected.sin().sum(), [x]))
    assert apply_rotary(x.bfloat16(), cos, sin).dtype == torch.bfloat16


def test_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator, dtype=torch.float64)

    def score(at: int, to: int) -> Tensor:
        rotated = [
            apply_rotary(v, *rotary_angles(torch.tensor([p]), 16, 1e4)) for v, p in ((query, at), (key, to))
        ]
        return (rotated[0] * rotated[1]).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), rtol=1e-6, atol=1e-6)


def test_a_window_counts_the_token_itself() -> None:
    positions = torch.arange(6)
    seen = visibility(positions, positions, 3)
    assert seen[5].tolist() == [False, False, False, True, True, True]
    assert seen[1].tolist() == [True, True, False, False, False, False]
    assert torch.equal(visibility(positions, positions, None), torch.ones(6, 6).tril().bool())
