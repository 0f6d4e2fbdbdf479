"""torch.compile traces the whole network, losses included, as one graph, and computes the same."""

from __future__ import annotations

import torch
from torch import Tensor

from ncp_model import LossDenominators, ModelSpec, NCPModel, build_model
from ncp_model.parallel import checkpoint_blocks, compile_layers

TINY = ModelSpec.preset("tiny")


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 512, (2, 22), generator=torch.Generator().manual_seed(0))
    return ids, torch.cat((ids[:, 1:], torch.full((2, 1), -100)), dim=1)


def gradients(model: NCPModel, **settings: object) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    ids, labels = batch()
    loss = model(ids, labels, **settings).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_the_network_is_one_graph() -> None:
    model = build_model(TINY)
    expected = gradients(model)
    torch.compiler.reset()
    model.compile(fullgraph=True, backend="aot_eager")  # traces forward and backward, without generating code
    torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-5)


def test_packed_documents_are_one_graph() -> None:
    model = build_model(TINY)
    settings = {
        "denominators": LossDenominators(ntp=3.0, ncp=2.0, vq=1.0),
        "doc_starts": torch.tensor([[0] * 9 + [9] * 13] * 2),
    }
    expected = gradients(model, **settings)
    torch.compiler.reset()
    model.compile(fullgraph=True, backend="eager")
    torch.testing.assert_close(gradients(model, **settings), expected, rtol=1e-4, atol=1e-5)


def test_layers_compile_one_by_one() -> None:
    model = build_model(TINY)
    expected = gradients(model)
    torch.compiler.reset()
    for layer in (*model.encoder, *model.concept, *model.decoder):
        layer.compile(fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-5)


def test_names_of_parameters_survive_compilation() -> None:
    model = build_model(TINY)
    names = [*model.state_dict()]
    assert [*compile_layers(model).state_dict()] == names


def test_recomputed_blocks_give_the_same_gradients() -> None:
    model = build_model(TINY)
    expected = gradients(model)
    torch.testing.assert_close(gradients(checkpoint_blocks(model)), expected)
