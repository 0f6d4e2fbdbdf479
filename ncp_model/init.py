"""Weight initialisation, identical at any world size (docs/model.md 2.11), and codebooks from data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from curriculum.model_spec import ModelSpec

# Names that wrappers put into a parameter's path and that say nothing about which parameter it is.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def parameter_name(name: str) -> str:
    """A parameter's own name, without what torch.compile or activation checkpointing put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def initializer(name: str, spec: ModelSpec) -> Callable[[Tensor, torch.Generator], Tensor]:
    """How the parameter called `name` starts: a function that fills a full tensor in place."""
    leaf = name.rsplit(".", 1)[-1]
    if "norm" in name:
        return _constant(0.0 if leaf == "bias" else 1.0)
    if leaf == "static":
        newest = (
            spec.irc.decoder_static_init if name.startswith("decoder.") and spec.irc.decoder_softmax else 1.0
        )
        return lambda tensor, _: tensor.zero_().index_fill_(0, torch.tensor([len(tensor) - 1]), newest)
    if leaf == "w1":
        return lambda tensor, generator: tensor.normal_(0.0, spec.hidden_size**-0.5, generator=generator)
    if leaf in ("w2", "head_bias"):
        return _constant(0.0)
    if leaf == "alpha":
        return _constant(spec.fusion_alpha_init)
    if leaf == "gate_logits":
        return _constant(math.log(0.5))
    if leaf == "diag":
        return _constant(spec.crc.final_diag_init if "final_concept" in name else spec.crc.diag_init)
    std = _base_std(spec)
    if spec.init.method == "scaled" and ("o_proj" in name or "down_proj" in name):
        std /= math.sqrt(2 * spec.total_layers)
    return lambda tensor, generator: nn.init.trunc_normal_(
        tensor, 0.0, std, -3 * std, 3 * std, generator=generator
    )


def _base_std(spec: ModelSpec) -> float:
    if spec.init.std is not None:
        return spec.init.std
    return 0.02 if spec.init.method == "normal" else math.sqrt(2 / (5 * spec.hidden_size))


def _constant(value: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda tensor, _: tensor.fill_(value)


@torch.no_grad()
def initialize_weights(model: nn.Module, spec: ModelSpec, seed: int) -> None:
    """Fill every parameter of a materialised model, sharded or not.

    Each parameter has a generator of its own, seeded by (seed, its name), so the weights depend on neither the world
    size nor the order of construction. A full tensor is generated on the CPU in float32, one parameter at a time, and
    each rank copies its shard.
    """
    for name, parameter in model.named_parameters():
        name = parameter_name(name)
        generator = torch.Generator().manual_seed(_name_seed(seed, name))
        full = torch.empty(parameter.shape, dtype=torch.float32)
        initializer(name, spec)(full, generator)
        copy_full_(parameter, full)


def _name_seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def copy_full_(parameter: Tensor, full: Tensor) -> None:
    """Copy a full tensor, equal on all ranks, into a parameter or into this rank's shard of it."""
    full = full.to(device=parameter.device, dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        # src_data_rank=None: every rank cuts its own copy, nothing is communicated.
        full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(full)


@torch.no_grad()
def initialize_codebooks(model: nn.Module, input_ids: Tensor, *, seed: int = 0) -> None:
    """Replace the codebooks by segments of real concepts: entry n of codebook s is z_j^s for a chunk j drawn for it.

    `input_ids` [B, T] is the same batch on every rank, so all arrive at the same codebooks. Chunks are drawn without
    replacement while there are enough of them; beyond that, further entries repeat with a little noise, so that no two
    codewords are equal. Raises ValueError if the batch has no complete chunk.
    """
    output = model(input_ids, return_logits=False)
    if isinstance(model, FSDPModule):
        model.reshard()  # the root keeps its parameters gathered after a forward without a backward
    if output.concept is None:
        raise ValueError(
            f"input_ids of shape {tuple(input_ids.shape)} holds no complete chunk: codebooks cannot start from it"
        )
    codebook = next(p for n, p in model.named_parameters() if parameter_name(n) == "predictor.codebook")
    segments, entries, size = codebook.shape
    chunks = output.concept.normed.detach().float().cpu().flatten(0, 1).unflatten(-1, (segments, size))
    generator = torch.Generator().manual_seed(_name_seed(seed, "initialize_codebooks"))
    full = torch.empty(segments, entries, size)
    for segment in range(segments):
        rounds = [torch.randperm(len(chunks), generator=generator) for _ in range(-(-entries // len(chunks)))]
        full[segment] = chunks[torch.cat(rounds)[:entries], segment]
    noise = torch.randn(full.shape, generator=generator) * 0.01
    noise[:, : len(chunks)] = 0.0
    copy_full_(codebook, full + noise)
