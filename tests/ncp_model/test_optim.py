"""The split by name, decay, Muon against torch's own, learning rate, clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from curriculum.optimizer_spec import OptimizerSpec
from ncp_model import ModelSpec, build_model
from ncp_model.init import initialize_codebooks
from ncp_model.muon import Muon, assign_owners, orthogonalize, shard_rows
from ncp_model.optim import build_optimizers, clip_grad_norm, clip_grad_norms, split_parameters


def numel(parameters: dict[str, nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters.values())


def test_split_of_the_full_model_has_the_published_counts() -> None:
    model = build_model(ModelSpec.preset("olmo3-7b-ncp"), device="meta")
    split = split_parameters(model, OptimizerSpec(lr=6e-5, codebooks="muon"))
    assert numel(split.muon) == 8_115_808_788
    assert numel(split.adamw_decay) + numel(split.adamw_no_decay) == 822_555_005
    assert numel({n: p for n, p in split.muon.items() if ".block." in n}) == 8_095_006_720
    assert numel({n: p for n, p in split.muon.items() if n.endswith((".w1", ".w2"))}) == 3_500_564
    assert split.muon["predictor.head_weight"].numel() == 16_777_216
    assert split.muon["predictor.codebook"].numel() == 524_288


def test_what_is_not_decayed_is_the_embedding_and_everything_of_one_dimension() -> None:
    model = build_model(ModelSpec.preset("tiny"), device="meta")
    split = split_parameters(model, OptimizerSpec(lr=1.0))
    assert set(split.adamw_decay) == {"lm_head.weight", "predictor.codebook"}
    not_decayed = split.adamw_no_decay
    assert {n for n, p in not_decayed.items() if p.ndim > 1} == {"embed_tokens.weight", "predictor.head_bias"}
    for name in (
        "encoder.0.irc.static",
        "decoder.1.final_concept.gate_logits",
        "decoder.0.final_concept.diag",
        "decoder.0.read_encoder.diag",
        "concept.0.block.attention.q_norm.weight",
        "vq_norm.bias",
        "fusion.alpha",
    ):
        assert name in not_decayed
    assert all(p.ndim >= 2 for p in split.muon.values())
    everything = {**split.muon, **split.adamw_decay, **not_decayed}
    assert everything.keys() == dict(model.named_parameters()).keys()


def test_matrices_can_go_to_adamw_and_frozen_parameters_to_nothing() -> None:
    model = build_model(ModelSpec.preset("tiny"), device="meta")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("predictor."))
    split = split_parameters(model, OptimizerSpec(lr=1.0, matrices="adamw"))
    assert not split.muon
    assert {*split.adamw_decay, *split.adamw_no_decay} == {
        "predictor.head_weight",
        "predictor.head_bias",
        "predictor.codebook",
    }


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_muon_equals_torchs_own(shape: tuple[int, int]) -> None:
    """Torch's divides by the learning-rate adjustment 0.2 where ours has rms_scale, and iterates in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], lr=1e-2, momentum=0.95, weight_decay=0.1)
    reference = torch.optim.Muon(
        [theirs], lr=5e-2, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        own.step()
        reference.step()
    assert (ours - theirs).norm() < 0.02 * (ours - start).norm()


def test_muon_update_has_the_stated_size() -> None:
    weight = nn.Parameter(torch.zeros(64, 256))
    weight.grad = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    Muon([weight], lr=1e-3, weight_decay=0.0, rms_scale=0.5).step()
    assert weight.detach().square().mean().sqrt().item() == pytest.approx(0.5e-3, rel=0.2)


def test_a_stack_is_stepped_as_its_separate_matrices() -> None:
    gradients = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    stack = nn.Parameter(torch.zeros(3, 8, 20))
    stack.grad = gradients.clone()
    Muon([stack], lr=1e-2).step()
    for index in range(3):
        alone = nn.Parameter(torch.zeros(8, 20))
        alone.grad = gradients[index].clone()
        Muon([alone], lr=1e-2).step()
        torch.testing.assert_close(stack[index], alone)


def test_orthogonalize_brings_singular_values_near_one() -> None:
    matrix = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalize(matrix))
    assert values.min() > 0.6 and values.max() < 1.3
    assert not orthogonalize(torch.zeros(4, 4)).any()


def test_muon_refuses_vectors() -> None:
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        Muon([nn.Parameter(torch.zeros(5))], lr=1.0)


def test_owners_share_the_work_and_shards_cover_the_rows() -> None:
    shapes = [(4096, 4096)] * 16 + [(11008, 4096)] * 12 + [(8, 4096)] * 6
    owners = assign_owners(shapes, 4)
    cost = [
        sum(m * n * min(m, n) for (m, n), o in zip(shapes, owners, strict=True) if o == r) for r in range(4)
    ]
    assert max(cost) <= 1.1 * sum(cost) / 4
    assert shard_rows(10, 4) == [3, 3, 3, 1]
    assert shard_rows(2, 4) == [1, 1, 0, 0]


def test_step_sets_the_learning_rate_everywhere() -> None:
    model = build_model(ModelSpec.preset("tiny"))
    optimizers = build_optimizers(model, OptimizerSpec(lr=1.0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ids = torch.zeros(1, 9, dtype=torch.long)
    model(ids, ids).loss.backward()
    optimizers.step(0.0)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    optimizers.step(1e-3)
    assert all(g["lr"] == 1e-3 for o in optimizers.optimizers for g in o.param_groups)
    assert not torch.equal(before["lm_head.weight"], model.lm_head.weight)
    optimizers.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping(limit: float) -> None:
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = clip_grad_norm(model, limit)
    assert norm.item() == pytest.approx(math.sqrt(8))
    clipped = math.sqrt(sum(float(gradient(p).square().sum()) for p in model.parameters()))
    assert clipped == pytest.approx(min(limit, math.sqrt(8)), rel=1e-5)


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _stepped(skips: list[bool | None], *, spoil: bool = False) -> dict[str, Tensor]:
    """Weights and optimizer state after steps that were taken (None: without being asked) or skipped."""
    model = build_model(ModelSpec.preset("tiny"), seed=0)
    optimizers = build_optimizers(model, OptimizerSpec(lr=1e-2))
    for number, skip in enumerate(skips):
        for index, parameter in enumerate(model.parameters()):
            draw = torch.Generator().manual_seed(100 * number + index)
            parameter.grad = torch.randn(parameter.shape, generator=draw)
            if skip and spoil:
                parameter.grad.fill_(float("nan"))
        optimizers.step(1e-2, None if skip is None else torch.tensor(skip))
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers.optimizers:
        for parameter, values in optimizer.state.items():
            state |= {f"{names[parameter]}/{key}": value for key, value in values.items()}
    return state


def test_a_step_that_is_skipped_on_the_device_leaves_no_trace_and_one_that_is_not_is_the_same_to_the_bit() -> (
    None
):
    taken = _stepped([None])
    for others in (_stepped([False]), _stepped([False, True]), _stepped([False, True], spoil=True)):
        assert others.keys() == taken.keys()
        assert [name for name in taken if not torch.equal(taken[name], others[name])] == []


def test_norms_of_groups_are_those_of_their_parameters_and_make_up_the_whole() -> None:
    model = build_model(ModelSpec.preset("tiny"), seed=0)
    optimizers = build_optimizers(model, OptimizerSpec(lr=1e-2))
    assert list(optimizers.groups) == ["muon", "adamw", "codebooks"]
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    expected = [
        math.sqrt(sum(float(gradient(p).double().square().sum()) for p in parameters))
        for parameters in optimizers.groups.values()
    ]
    norms = clip_grad_norms(model, 1e9, optimizers.groups).tolist()
    assert norms[1:] == pytest.approx(expected, rel=1e-5)
    assert norms[0] == pytest.approx(math.hypot(*expected), rel=1e-5)


def test_training_lowers_the_losses_and_comes_to_use_the_concept() -> None:
    model = build_model(ModelSpec.preset("tiny"))
    position = torch.arange(32)
    pattern = (position // 4 * 29 + position * 3).remainder(64)  # a chunk follows from the one before
    ids = pattern + torch.arange(4).unsqueeze(1) * 64
    labels = torch.cat((ids[:, 1:], torch.full((4, 1), -100)), dim=1)
    initialize_codebooks(model, ids)
    optimizers = build_optimizers(model, OptimizerSpec(lr=1e-2))
    start = model(ids, labels).means()
    for _ in range(40):
        model(ids, labels).loss.backward()
        clip_grad_norm(model, 1.0)
        optimizers.step(1e-2)
        optimizers.zero_grad()
    end = model(ids, labels).means()
    assert end["ntp"] < 0.2 * start["ntp"]
    assert end["ncp"] < start["ncp"]
    blind = model(ids, labels, zero_concept=True).means()
    assert blind["ntp"] > end["ntp"]


def test_nothing_to_train_is_an_error() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to optimise"):
        build_optimizers(model, OptimizerSpec(lr=1.0))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 4, 6), (300, 300)])
def test_the_scale_of_a_gradient_does_not_matter_to_muon_however_small(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    reference = orthogonalize(gradient)
    for exponent in (-11, -20, -30, -37):
        torch.testing.assert_close(orthogonalize(gradient * 10.0**exponent), reference, atol=2e-5, rtol=0)
    exact = orthogonalize(gradient * 2.0**-40)  # a power of two is no rounding: equal to the bit
    assert torch.equal(exact, orthogonalize(gradient * 2.0**-80))
    assert torch.equal(orthogonalize(torch.zeros(shape)), torch.zeros(shape))


def test_a_matrix_of_an_ordinary_scale_is_orthogonalized_as_published_to_the_bit() -> None:
    for scale in (1e-6, 1e-3, 1.0, 1e6):
        x = torch.randn(5, 7, generator=torch.Generator().manual_seed(2)) * scale
        expected = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).unsqueeze(0)
        for _ in range(5):
            gram = torch.bmm(expected, expected.mT)
            polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
            expected = torch.baddbmm(expected, polynomial, expected, beta=3.4445)
        assert torch.equal(orthogonalize(x), expected.squeeze(0))


def test_a_matrix_in_a_stack_is_scaled_by_itself() -> None:
    gradient = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(3))
    both = orthogonalize(torch.stack((gradient[0], gradient[1] * 1e-25)))
    torch.testing.assert_close(both[0], orthogonalize(gradient[0]))
    torch.testing.assert_close(both[1], orthogonalize(gradient[1]), atol=2e-5, rtol=0)
