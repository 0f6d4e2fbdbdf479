"""Parameters, and floating-point operations per trained token, from the specification alone (docs/model.md 4, 5).

Pure arithmetic without torch, so that a plan can be priced by a driver that never loads it. One training token costs six
operations per multiply-accumulate (forward, and both gradients).
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.model_spec import ModelSpec


def parameter_counts(spec: ModelSpec) -> dict[str, int]:
    """Parameters of each component; the values add up to the whole model."""
    d, vocabulary = spec.hidden_size, spec.vocab_size
    norm_size = 2 * d if spec.qk_norm == "layer" else 2 * spec.head_dim
    block = 4 * d * d + 3 * d * spec.intermediate_size + norm_size + 2 * d
    counts = {"embedding": vocabulary * d, "lm_head": vocabulary * d, "final_norm": d}
    if not spec.concept.enabled:
        counts["decoder_blocks"] = spec.token_layers * block
        if spec.irc.enabled:
            counts["irc_decoder"] = _irc_parameters(spec.token_layers, d)
        return counts

    encoder, concept, decoder = spec.encoder_layers, spec.concept_layers, spec.decoder_layers
    counts |= {
        "encoder_blocks": encoder * block,
        "concept_blocks": concept * block,
        "decoder_blocks": decoder * block,
        "concept_norm": d,
        "prediction_heads": spec.concept.segments * spec.concept.entries * (d + 1),
        "codebooks": spec.concept.entries * d,
        "vq_norm": 2 * d,
    }
    if spec.irc.enabled:
        for name, layers in (("encoder", encoder), ("concept", concept), ("decoder", decoder)):
            counts[f"irc_{name}"] = _irc_parameters(layers, d)
    if spec.crc.enabled:
        counts |= {
            "crc_encoder_to_concept": concept * _crc_parameters(encoder - 1, d),
            "crc_encoder_to_decoder": decoder * _crc_parameters(encoder, d),
            "crc_concept_to_decoder": decoder * _crc_parameters(concept, d),
            "route_source_norms": 6 * d,
        }
        if spec.crc.final_route:
            counts |= {"final_concept_routes": decoder * 3 * d, "gates": 2 * decoder}
    if spec.fusion == "normed_add":
        counts |= {"fusion_norms": 4 * d, "fusion_alpha": 1}
    return counts


def total_parameters(spec: ModelSpec) -> int:
    """Parameters of the model."""
    return sum(parameter_counts(spec).values())


def adaptation_parameters(spec: ModelSpec) -> int:
    """What domain adaptation by vector quantisation trains: heads and codebooks (docs/model.md 9)."""
    counts = parameter_counts(spec)
    return counts.get("prediction_heads", 0) + counts.get("codebooks", 0)


def _irc_parameters(layers: int, d: int) -> int:
    return sum(n * d + n * n + n for n in range(2, layers + 2))


def _crc_parameters(sources: int, d: int) -> int:
    return d + sources * d + sources * sources


def mean_visible_keys(length: int, window: int | None) -> float:
    """Keys that a causal query sees, the token itself included, averaged over a sequence of `length`."""
    if window is None or window >= length:
        return (length + 1) / 2
    return (window * (window + 1) / 2 + (length - window) * window) / length


@dataclass(frozen=True, kw_only=True)
class TokenFlops:
    """Training operations per token: the blocks (what published tables compare), and the rest."""

    blocks: float
    concept_heads: float
    routes: float
    lm_head: float

    @property
    def total(self) -> float:
        """Everything: the basis of model FLOPs utilisation."""
        return self.blocks + self.concept_heads + self.routes + self.lm_head


def flops_per_token(spec: ModelSpec, sequence_length: int) -> TokenFlops:
    """Training FLOPs per token at `sequence_length`, with the exact causal context of local and full layers."""
    k = spec.concept.chunk_size
    if not spec.concept.enabled:
        blocks = _tower_flops(spec, spec.token_layers, sequence_length)
        routes = 6 * _irc_macs(spec, spec.token_layers) if spec.irc.enabled else 0
        return TokenFlops(blocks=blocks, concept_heads=0, routes=routes, lm_head=_lm_head(spec))
    blocks = (
        _tower_flops(spec, spec.encoder_layers, sequence_length)
        + _tower_flops(spec, spec.concept_layers, sequence_length // k) / k
        + _tower_flops(spec, spec.decoder_layers, sequence_length)
    )
    heads = (
        spec.concept.segments * spec.concept.entries * spec.hidden_size
        + spec.concept.entries * spec.hidden_size
    )
    return TokenFlops(
        blocks=blocks, concept_heads=6 * heads / k, routes=6 * _route_macs(spec), lm_head=_lm_head(spec)
    )


def _lm_head(spec: ModelSpec) -> float:
    return 6.0 * spec.vocab_size * spec.hidden_size


def _tower_flops(spec: ModelSpec, layers: int, length: int) -> float:
    """Per position of the tower: its matrices, and attention's scores and mixture over the visible keys."""
    d = spec.hidden_size
    window = spec.window if spec.window_includes_self else spec.window + 1
    full = layers // spec.full_attention_every
    keys = full * mean_visible_keys(length, None) + (layers - full) * mean_visible_keys(length, window)
    return layers * 6 * (4 * d * d + 3 * d * spec.intermediate_size) + 12 * d * keys


def _irc_macs(spec: ModelSpec, layers: int) -> float:
    return sum(2 * n * spec.hidden_size + n * n for n in range(2, layers + 2))


def _crc_macs(spec: ModelSpec, sources: int) -> float:
    return 2 * sources * spec.hidden_size + sources * sources + spec.hidden_size


def _route_macs(spec: ModelSpec) -> float:
    k, d = spec.concept.chunk_size, spec.hidden_size
    macs = 0.0
    if spec.irc.enabled:
        macs += _irc_macs(spec, spec.encoder_layers) + _irc_macs(spec, spec.decoder_layers)
        macs += _irc_macs(spec, spec.concept_layers) / k
    if spec.crc.enabled:
        macs += spec.concept_layers * _crc_macs(spec, spec.encoder_layers - 1) / k
        macs += spec.decoder_layers * _crc_macs(spec, spec.encoder_layers)
        macs += spec.decoder_layers * _crc_macs(spec, spec.concept_layers)
        macs += spec.decoder_layers * d if spec.crc.final_route else 0
    return macs
