"""Sums, counts, denominators, the gradient table of docs/model.md 6, and cross entropy without logits."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from curriculum.model_spec import NcpSpec, VqSpec
from ncp_model import LossDenominators, ModelSpec, NCPModel, build_model, loss_counts, losses
from ncp_model.quantizer import decode_codes, nearest_codes

TINY = ModelSpec.preset("tiny")


def batch(rows: int = 4, length: int = 22, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, TINY.vocab_size, (rows, length), generator=generator)
    labels = torch.cat((ids[:, 1:], torch.full((rows, 1), -100)), dim=1)
    return ids, labels


def spec_with(*, ncp: float = 0.0, vq: float = 0.0, **changes: object) -> ModelSpec:
    ncp_spec = dataclasses.replace(
        TINY.ncp, weight=ncp, **{k: v for k, v in changes.items() if k in ("grad_to_codebook", "loss")}
    )
    rest = {k: v for k, v in changes.items() if k not in ("grad_to_codebook", "loss")}
    return dataclasses.replace(TINY, ncp=ncp_spec, vq=VqSpec(weight=vq), z_loss=0.0, **rest)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 17),
    chunk=st.integers(1, 5),
    masked=st.lists(st.integers(0, 16), max_size=6),
)
def test_counts_follow_the_definition(length: int, chunk: int, masked: list[int]) -> None:
    labels = np.ones((1, length), dtype=np.int64)
    labels[0, -1] = -100
    labels[0, [m for m in masked if m < length]] = -100
    predicted = [labels[0, 0] != -100] + [labels[0, t - 1] != -100 for t in range(1, length)]
    valid = [all(predicted[j * chunk : (j + 1) * chunk]) for j in range(length // chunk)]
    pairs = sum(a and b for a, b in itertools.pairwise(valid))
    expected = LossDenominators(ntp=float((labels != -100).sum()), ncp=float(pairs), vq=float(sum(valid)))
    assert loss_counts(labels, chunk) == expected
    assert loss_counts(torch.from_numpy(labels), chunk) == expected


def test_counts_of_packed_documents_are_those_of_documents_alone() -> None:
    lengths = [5, 1, 9, 4, 3]
    labels = torch.arange(sum(lengths)).unsqueeze(0)
    labels[0, torch.tensor(lengths).cumsum(0) - 1] = -100
    starts = torch.cat([torch.full((n,), sum(lengths[:i])) for i, n in enumerate(lengths)]).unsqueeze(0)
    alone = [loss_counts(part, 2) for part in labels.split(lengths, dim=1)]
    packed = loss_counts(labels, 2, starts)
    for name in ("ntp", "ncp", "vq"):
        assert getattr(packed, name) == sum(getattr(part, name) for part in alone)


def test_the_model_counts_as_the_loader_does() -> None:
    ids, labels = batch()
    labels[0, 4:9] = -100
    out = build_model(TINY)(ids, labels)
    expected = loss_counts(labels, TINY.concept.chunk_size)
    assert {k: float(v) for k, v in vars(out.counts).items()} == vars(expected)


def test_loss_is_the_weighted_sum_over_given_denominators() -> None:
    spec = dataclasses.replace(TINY, ncp=NcpSpec(weight=0.5), vq=VqSpec(weight=0.25), z_loss=1e-3)
    ids, labels = batch()
    out = build_model(spec)(ids, labels, denominators=LossDenominators(ntp=10.0, ncp=20.0, vq=40.0))
    expected = (out.ntp + 1e-3 * out.z) / 10 + 0.5 * out.ncp / 20 + 0.25 * out.vq / 40
    torch.testing.assert_close(out.loss, expected)
    assert out.loss.dtype == torch.float32


def test_sums_are_what_they_say() -> None:
    ids, labels = batch()
    out = build_model(TINY)(ids, labels, return_logits=True)
    assert out.logits is not None and out.concept is not None
    ce = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(out.ntp, ce)
    concept = out.concept
    error = (concept.predicted_for_loss[:, :-1] - concept.target[:, 1:]).square().mean(-1).sum()
    torch.testing.assert_close(out.ncp, error)
    torch.testing.assert_close(out.vq, concept.vq_error.sum())
    means = out.means()
    assert means["ncp"] == pytest.approx(float(error) / (4 * 4))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_micro_batches_of_uneven_masks_give_one_gradient(rows: int) -> None:
    ids, labels = batch()
    labels[0, 2:18] = -100
    labels[2, :] = -100
    model = build_model(TINY, dtype=torch.float64)
    total = loss_counts(labels, TINY.concept.chunk_size)

    def gradients(size: int) -> dict[str, Tensor]:
        model.zero_grad()
        for start in range(0, 4, size):
            part = slice(start, start + size)
            model(ids[part], labels[part], denominators=total).loss.backward()
        return {name: gradient_of(model, name) for name, _ in model.named_parameters()}

    whole, pieces = gradients(4), gradients(rows)
    for name in whole:
        torch.testing.assert_close(pieces[name], whole[name], rtol=1e-9, atol=1e-12, msg=name)


def gradient_of(model: NCPModel, name: str) -> Tensor:
    parameter = model.get_parameter(name)
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def reached(model: NCPModel, loss: Tensor) -> set[str]:
    model.zero_grad()
    loss.backward()
    return {name for name, _ in model.named_parameters() if gradient_of(model, name).any()}


GROUPS = {
    "encoder": ("embed_tokens", "encoder"),
    "concept": ("concept.", "predictor.head"),
    "codebook": ("predictor.codebook",),
    "decoder": ("decoder", "final_norm", "lm_head", "fusion"),
    "vq_norm": ("vq_norm",),
}


def groups_of(names: set[str]) -> set[str]:
    return {group for group, prefixes in GROUPS.items() if any(n.startswith(prefixes) for n in names)}


@pytest.mark.parametrize(
    ("loss", "switches", "expected"),
    [
        ("ntp", {}, {"encoder", "concept", "codebook", "decoder", "vq_norm"}),
        ("ncp", {}, {"encoder", "concept", "vq_norm"}),
        ("ncp", {"grad_to_codebook": True}, {"encoder", "concept", "codebook", "vq_norm"}),
        ("ncp", {"loss": "ce"}, {"encoder", "concept", "vq_norm"}),
        ("vq", {}, {"codebook"}),
    ],
)
def test_gradient_table(loss: str, switches: dict[str, object], expected: set[str]) -> None:
    layers = {"encoder_layers": 3, "concept_layers": 2, "decoder_layers": 3}
    model = build_model(spec_with(ncp=float(loss == "ncp"), vq=float(loss == "vq"), **switches, **layers))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".w2"):  # zero at first, which hides w1 from the gradient
                parameter.copy_(torch.eye(len(parameter)))
    ids, labels = batch()
    keep = LossDenominators(ntp=float(loss == "ntp"), ncp=1.0, vq=1.0)  # a zero denominator switches NTP off
    names = reached(model, model(ids, labels, denominators=keep).loss)
    assert groups_of(names) == expected
    if loss == "ntp":  # every single parameter, not only one of each group
        assert names == dict(model.named_parameters()).keys()


def test_vq_gradient_reaches_the_chosen_codewords_only() -> None:
    model = build_model(spec_with(vq=1.0))
    ids, labels = batch()
    out = model(ids, labels, denominators=LossDenominators(ntp=0.0, ncp=0.0, vq=1.0))
    out.loss.backward()
    moved = gradient_of(model, "predictor.codebook").any(-1)
    chosen = torch.zeros_like(moved)
    for segment in range(moved.shape[0]):
        chosen[segment, out.concept.codes[..., segment].flatten()] = True
    assert torch.equal(moved, chosen)


def test_no_target_of_the_ncp_loss_carries_gradient() -> None:
    """The target is detached: moving only the last chunk's hidden states through the loss is impossible."""
    model = build_model(spec_with(ncp=1.0))
    embedded: list[Tensor] = []
    model.embed_tokens.register_forward_hook(
        lambda _module, _inputs, output: embedded.append(output) or output.retain_grad()
    )
    ids, labels = batch(rows=1, length=12)
    model(ids, labels, denominators=LossDenominators(ntp=0.0, ncp=1.0, vq=0.0)).loss.backward()
    gradient = embedded[0].grad
    assert gradient is not None
    assert gradient[0, :8].any(-1).all()
    assert not gradient[0, 8:].any()


def test_the_pooled_target_is_the_state_before_the_norm() -> None:
    spec = dataclasses.replace(TINY, ncp=NcpSpec(target="pooled"))
    model, (ids, labels) = build_model(spec), batch()
    with torch.no_grad():
        model.vq_norm.weight.mul_(3.0)
    concept = model(ids, labels).concept
    torch.testing.assert_close(model.vq_norm(concept.target), concept.normed)
    normed = build_model(TINY)(ids, labels).concept
    assert torch.equal(normed.target, normed.normed)


@pytest.mark.parametrize("pieces", [1 << 9, 1 << 20])
def test_linear_cross_entropy_is_cross_entropy(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setitem(losses.LOGITS_PER_PIECE, "cpu", pieces)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 70, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, 50, (3, 70), generator=generator)
    labels[:, ::3] = -100
    total, ntp, z = losses.linear_cross_entropy(x, weight, labels, 1e-2)
    expected = losses.logits_cross_entropy(x @ weight.t(), labels, 1e-2)
    torch.testing.assert_close((total, ntp, z), expected)
    actual_gradients = torch.autograd.grad(total * 0.5, (x, weight))
    expected_gradients = torch.autograd.grad(expected[0] * 0.5, (x, weight))
    torch.testing.assert_close(actual_gradients, expected_gradients)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8])
def test_short_and_fully_masked_batches_have_a_defined_loss(length: int) -> None:
    model = build_model(TINY)
    ids, labels = batch(2, length)
    out = model(ids, torch.full_like(labels, -100))
    out.loss.backward()
    assert out.loss == 0
    assert all(not gradient_of(model, name).any() for name, _ in model.named_parameters())
    assert torch.isfinite(model(ids, ids).loss)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        (torch.tensor([[0, 512]]), "0 .. 511"),
        (torch.tensor([[-1, 5]]), "ids -1 .. 5"),
        (torch.zeros(1, 0, dtype=torch.long), "T >= 1"),
        (torch.zeros(3, dtype=torch.long), r"\(3,\)"),
    ],
)
def test_malformed_input_is_named(ids: Tensor, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build_model(TINY)(ids)


def test_labels_of_another_shape_or_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels holds 512: must be -100 or lie in 0 \.\. 511"):
        build_model(TINY)(torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), 512))
    with pytest.raises(ValueError, match="labels has shape"):
        build_model(TINY)(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))


def test_nearest_codes_are_exact_under_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    z, codebook = torch.randn(64, 32, generator=generator), torch.randn(4, 128, 8, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nearest_codes(z, codebook), nearest_codes(z.double(), codebook.double()))


def test_a_chunk_that_is_no_number_has_no_code_and_is_counted_as_none() -> None:
    z, codebook = torch.randn(2, 3, 8), torch.randn(2, 5, 4)
    whole = nearest_codes(z, codebook)
    z[0, 1, 5] = float("nan")
    codes = nearest_codes(z, codebook)
    assert codes[0, 1].tolist() == [int(whole[0, 1, 0]), -1]
    assert (codes == whole).sum() == whole.numel() - 1
    decoded = decode_codes(codes, codebook)
    assert decoded.isnan().sum() == 4 and decoded[0, 1, 4:].isnan().all()
