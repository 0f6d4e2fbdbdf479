"""A ladder of models for a scaling law: which shapes, trained on how many tokens, at what cost.

Every shape is trained at every compute budget it suits, on D = C / FLOPs-per-token tokens (docs/model.md 13), rounded to whole
steps. FLOPs per token are the exact ones of `ncp_model.flops`, not 6 N: an NCP model and a plain one of equal
parameters do not cost the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, ModelSpec, NcpSpec, VqSpec
from ncp_model.flops import flops_per_token, total_parameters

TOKENS_PER_PARAMETER = (5.0, 100.0)
"""Shapes whose budget would buy fewer or more tokens than this per parameter are far off the frontier, and left out."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One training run of the ladder."""

    name: str
    family: str
    spec: ModelSpec
    lr: float | None
    """Peak learning rate where it is not the recipe's."""
    budget: float
    """FLOPs asked for."""
    tokens: int
    parameters: int
    flops: float
    """FLOPs this run takes: whole steps, so within half a step of the budget."""


def plain_spec(base: ModelSpec) -> ModelSpec:
    """`base` without concepts, their losses, and residual routes: the baseline's architecture."""
    return dataclasses.replace(
        base,
        concept_layers=0,
        concept=ConceptSpec(enabled=False),
        ncp=NcpSpec(weight=0.0),
        vq=VqSpec(weight=0.0),
        irc=IrcSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    )


def scaled_spec(base: ModelSpec, hidden_size: int, layers: tuple[int, int, int]) -> ModelSpec:
    """`base` at another width and (encoder, concept, decoder) depth: head and codeword sizes kept, the MLP's ratio too.

    Raises ModelSpecError where the widths do not divide.
    """
    encoder, concept, decoder = layers
    ratio = base.intermediate_size / base.hidden_size
    values: dict[str, Any] = {
        "hidden_size": hidden_size,
        "intermediate_size": 64 * max(1, round(ratio * hidden_size / 64)),
        "num_heads": max(1, hidden_size // base.head_dim),
        "encoder_layers": encoder,
        "concept_layers": concept if base.concept.enabled else 0,
        "decoder_layers": decoder,
    }
    if base.concept.enabled:
        segments = max(1, hidden_size // base.segment_size)
        values["concept"] = dataclasses.replace(base.concept, segments=segments)
    return dataclasses.replace(base, **values)


def plan_ladder(
    family: str,
    specs: Iterable[tuple[ModelSpec, float | None]],
    budgets: Sequence[float],
    *,
    sequence_length: int,
    global_batch_tokens: int,
    tokens_per_parameter: tuple[float, float] = TOKENS_PER_PARAMETER,
) -> list[Rung]:
    """The runs of one family, by budget and then by size. `specs`: models with the learning rate of each."""
    rungs = []
    for spec, lr in specs:
        cost, parameters = flops_per_token(spec, sequence_length).total, total_parameters(spec)
        for budget in budgets:
            steps = max(1, round(budget / cost / global_batch_tokens))
            tokens = steps * global_batch_tokens
            if not tokens_per_parameter[0] <= tokens / parameters <= tokens_per_parameter[1]:
                continue
            shape = f"{spec.hidden_size}-{spec.encoder_layers}.{spec.concept_layers}.{spec.decoder_layers}"
            rungs.append(
                Rung(
                    name=f"{family}-{shape}-{_short(budget)}",
                    family=family,
                    spec=spec,
                    lr=lr,
                    budget=budget,
                    tokens=tokens,
                    parameters=parameters,
                    flops=cost * tokens,
                )
            )
    return sorted(rungs, key=lambda rung: (rung.budget, rung.parameters))


def _short(budget: float) -> str:
    """1e19, 2.5e19: exact for budgets of three digits."""
    mantissa, exponent = f"{budget:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
