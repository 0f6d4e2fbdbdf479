"""Bytes that one training step needs on one rank, from the specification alone. Pure arithmetic without torch.

Weights, gradients and optimizer state are exact. Activations are an estimate: elements kept per token and block, fitted to
docs/benchmarks/model.md (within 6 % there), so a refusal should leave it some room.
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from ncp_model.flops import parameter_counts

FLOAT32 = 4
BYTES = {"float32": 4, "bfloat16": 2}
_BLOCK_WIDTHS = 11
"""Times hidden_size: what a block keeps of the residual stream, attention and norms for its backward pass, per token."""
_MLP_WIDTHS = 3.5
"""Times intermediate_size: gate, up, their product and half of it again."""
_ROUTE_WIDTHS = 4
"""Times hidden_size: what a layer's residual routes keep."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes on one rank."""

    state: int
    """Float32 weights, gradients and optimizer state of this rank's shard."""
    gathered: int
    """Whole units at compute precision: the two that run or are fetched next, and the root's embedding and head."""
    activations: int
    """Kept by one micro-batch for its backward pass (estimated)."""
    optimizer: int
    """What Muon holds of all its matrices at the same time while it steps: updates, and their orthogonal directions."""

    @property
    def total(self) -> int:
        """The higher of the two peaks: in the backward pass, and in the optimizer's step."""
        return self.state + max(self.gathered + self.activations, self.optimizer)


def muon_parameters(spec: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Parameters that Muon trains, with one momentum; all others have AdamW's two moments (`ncp_model.optim`)."""
    counts = parameter_counts(spec)
    muon = counts.get("codebooks", 0) if optimizer.codebooks == "muon" else 0
    if optimizer.matrices == "adamw":
        return muon
    d = spec.hidden_size
    muon += spec.total_layers * (4 * d * d + 3 * d * spec.intermediate_size)
    towers = [spec.token_layers]
    if spec.concept.enabled:
        muon += spec.concept.segments * spec.concept.entries * d
        towers = [spec.encoder_layers, spec.concept_layers, spec.decoder_layers]
    if spec.irc.enabled:
        muon += sum(n * d + n * n for layers in towers for n in range(2, layers + 2))
    if spec.crc.enabled:
        for layers, sources in (
            (spec.concept_layers, spec.encoder_layers - 1),
            (spec.decoder_layers, spec.encoder_layers),
            (spec.decoder_layers, spec.concept_layers),
        ):
            muon += layers * (sources * d + sources * sources)
    return muon


def checkpoint_bytes(spec: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Tensors of one milestone: float32 weights, and the moments of the whole model's optimizers."""
    return FLOAT32 * (3 * sum(parameter_counts(spec).values()) - muon_parameters(spec, optimizer))


def step_memory(
    spec: ModelSpec,
    optimizer: OptimizerSpec,
    *,
    sequence_length: int,
    micro_batch_size: int,
    shards: int,
    param_dtype: str = "float32",
    activation_checkpointing: bool = False,
) -> StepMemory:
    """The estimate for a rank that holds one of `shards` pieces of the model."""
    counts = parameter_counts(spec)
    total = sum(counts.values())
    d, width = spec.hidden_size, BYTES[param_dtype]
    state = (checkpoint_bytes(spec, optimizer) + FLOAT32 * total) / shards
    block = 4 * d * d + 3 * d * spec.intermediate_size
    unit = max(block, counts.get("prediction_heads", 0) + counts.get("codebooks", 0))
    gathered = width * (counts["embedding"] + counts["lm_head"] + 2 * unit)

    tokens = micro_batch_size * sequence_length
    token_layers = spec.token_layers
    concept_layers = spec.concept_layers / spec.concept.chunk_size if spec.concept.enabled else 0.0
    layers = token_layers + concept_layers
    per_block = _BLOCK_WIDTHS * d + _MLP_WIDTHS * spec.intermediate_size
    kept = d * layers + per_block if activation_checkpointing else per_block * layers
    routes = _ROUTE_WIDTHS * d * layers if spec.irc.enabled or spec.crc.enabled else 0.0
    activations = width * tokens * (kept + routes)
    return StepMemory(
        state=int(state),
        gathered=int(gathered),
        activations=int(activations),
        optimizer=int(2 * FLOAT32 * muon_parameters(spec, optimizer) / shards),
    )
