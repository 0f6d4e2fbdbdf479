"""No logit moves, by one bit of float64, when a later token changes; and the freshest leak-free concept is used."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec
from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model import grid as grid_module

VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "three_layers": {"encoder_layers": 3, "concept_layers": 2, "decoder_layers": 3},
    "no_routes": {"fusion": "add", "irc": IrcSpec(enabled=False), "crc": CrcSpec(enabled=False)},
    "release": {
        "qk_norm": "head",
        "window_includes_self": False,
        "concept": ConceptSpec(segments=4, entries=16, mix="raw_logits", rope_stride=4),
        "irc": IrcSpec(decoder_softmax=True, cond="delta"),
    },
    "hidden_readout": {"concept": ConceptSpec(segments=4, entries=16, chunk_size=3, readout="hidden")},
}


def small_model(**changes: object) -> NCPModel:
    spec = dataclasses.replace(ModelSpec.preset("tiny"), **changes)
    model = build_model(spec, dtype=torch.float64)
    wake_routes(model)
    return model


def wake_routes(model: NCPModel) -> None:
    """Give routes that start as zero or uniform some weight, so that every path carries a signal."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w2", ".diag", ".bias", ".static")):
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)


def tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 512, (1, length), generator=torch.Generator().manual_seed(seed))


def perturbed(ids: Tensor, position: int) -> Tensor:
    other = ids.clone()
    other[0, position] = (other[0, position] + 1) % 512
    return other


def moved(model: NCPModel, ids: Tensor, position: int, doc_starts: Tensor | None = None) -> Tensor:
    """Which positions' logits change when the token at `position` does, boolean [T]."""
    with torch.no_grad():
        before = model(ids, doc_starts=doc_starts).logits
        after = model(perturbed(ids, position), doc_starts=doc_starts).logits
    return (before != after).any(-1)[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 23])
def test_no_earlier_logit_moves(variant: str, length: int) -> None:
    model, ids = small_model(**VARIANTS[variant]), tokens(length)
    for position in range(length):
        changed = moved(model, ids, position)
        assert not changed[:position].any()
        assert changed[position]


def test_no_earlier_logit_and_no_other_document_moves() -> None:
    model, ids = small_model(), tokens(23)
    starts = torch.tensor([[0] * 6 + [6] * 2 + [8] * 9 + [17] * 6])
    for position in range(23):
        changed = moved(model, ids, position, starts)
        same_document = starts[0] == starts[0, position]
        assert not changed[:position].any()
        assert not changed[~same_document].any()
        assert changed[position]


def test_one_concept_earlier_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading floor((t+2)/k) - 1 instead: the earliest shift that is not causal (docs/model.md 3)."""

    def early(self: grid_module.AlignedGrid, slots: Tensor) -> Tensor:
        slots = torch.cat((slots.flatten(1, 2), slots[:, -1:].flatten(1, 2)), dim=1)
        return slots[:, 2 : self.length + 2]

    model, ids = small_model(), tokens(16)
    monkeypatch.setattr(grid_module.AlignedGrid, "_tokens", early)
    assert any(moved(model, ids, position)[:position].any() for position in range(16))


def test_prediction_of_a_chunk_is_used_from_its_last_token_on() -> None:
    """Changing chunk 1 moves, through the concept alone, exactly the positions from that chunk's last token on."""
    grid = grid_module.AlignedGrid(14, 4)
    rows = torch.arange(4.0).view(1, 4, 1)
    assert grid.spread(rows)[0, :, 0].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_packed_documents_equal_documents_alone(seed: int) -> None:
    model = small_model()
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 14, (5,), generator=generator).tolist()
    ids = tokens(sum(lengths), seed)
    starts = torch.cat([torch.full((n,), sum(lengths[:i])) for i, n in enumerate(lengths)]).unsqueeze(0)
    with torch.no_grad():
        packed = model(ids, doc_starts=starts).logits
        alone = torch.cat([model(part).logits for part in ids.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
