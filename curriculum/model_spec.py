"""The model's specification: what is computed, never where or how fast.

Every switch of docs/model.md 0.1 (where the paper, the article and the released model disagree) is a field here, and every
default is the recommended one. The module is pure standard library so that the planner can price a model without torch.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curriculum.errors import RecipeError, nearest
from curriculum.fields import declared, require_bounds


def _require(condition: bool, key: str, value: object, fix: str) -> None:
    if not condition:
        raise RecipeError(f"model.{key} = {value!r}: {fix}")


def _require_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    _require(value in choices, key, value, f"use one of {', '.join(choices)}")


@dataclass(frozen=True, kw_only=True)
class ConceptSpec:
    """The Concept Module and its product quantiser (docs/model.md 2.3 - 2.6)."""

    enabled: bool = True
    chunk_size: int = declared(4, at_least=1, at_most=65_536)  # k: tokens in one concept
    segments: int = declared(32, at_least=1, at_most=1_048_576)  # S: parts of a concept, a codebook for each
    entries: int = declared(128, at_least=1, at_most=16_777_216)  # N: codewords in a codebook
    mix: str = "softmax"  # softmax (convex hull of the codewords) | raw_logits (released checkpoint)
    readout: str = "codebook"  # what is injected: codebook (the mixture) | hidden (the module's normed state)
    rope_stride: int = declared(1, at_least=1, at_most=65_536)  # RoPE position of chunk j is j * rope_stride
    codebook_init: str = "data"  # data (segments of real chunks) | normal (truncated normal, as the blocks)


@dataclass(frozen=True, kw_only=True)
class NcpSpec:
    """The next-concept prediction loss (docs/model.md 6)."""

    weight: float = declared(1.0, at_least=0)  # alpha, on the mean squared error per element
    target: str = "normed"  # normed (layer-normed pooled state) | pooled
    grad_to_codebook: bool = False  # whether this loss moves the codebooks
    loss: str = "mse"  # mse (against the vector) | ce (against the next chunk's codes)


@dataclass(frozen=True, kw_only=True)
class VqSpec:
    """The codebook loss (docs/model.md 6)."""

    weight: float = declared(1.0, at_least=0)  # beta, on the mean squared error per element


@dataclass(frozen=True, kw_only=True)
class IrcSpec:
    """Intra-module residual connections (docs/model.md 2.7)."""

    enabled: bool = True
    decoder_softmax: bool = False  # the released decoder normalises its weights
    decoder_static_init: float = (
        1.0  # weight of the newest state; +12 makes a softmax start as a plain residual
    )
    cond: str = "state"  # what the weights are computed from: state (after the residual add) | delta (before)


@dataclass(frozen=True, kw_only=True)
class CrcSpec:
    """Cross-module residual connections and the final-concept route (docs/model.md 2.8, 2.9)."""

    enabled: bool = True
    final_route: bool = True  # the predicted concept, normed, into every decoder layer, with a learned gate
    diag_init: float = 0.02
    final_diag_init: float = 0.05


@dataclass(frozen=True, kw_only=True)
class InitSpec:
    """Weight initialisation (docs/model.md 2.11): truncated normals cut at three standard deviations."""

    method: str = (
        "scaled"  # scaled: std sqrt(2 / (5 d)), outputs / sqrt(2 * depth) | normal: one std everywhere
    )
    std: float | None = declared(None, above=0, at_most=100)  # instead of the method's base (normal: 0.02)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The NCP network, or with `concept.enabled: false` the plain OLMo 3 stack of encoder_layers + decoder_layers.

    Defaults are the 8.94B model. Raises RecipeError on any combination that cannot be built.
    """

    hidden_size: int = declared(4096, at_least=1, at_most=1_048_576)
    intermediate_size: int = declared(11008, at_least=1, at_most=16_777_216)
    num_heads: int = declared(32, at_least=1, at_most=1_048_576)
    encoder_layers: int = declared(16, at_least=0, at_most=1_000)
    concept_layers: int = declared(8, at_least=0, at_most=1_000)
    decoder_layers: int = declared(16, at_least=0, at_most=1_000)
    vocab_size: int = declared(100_278, at_least=1, at_most=10_000_000)
    max_sequence_length: int = declared(8192, at_least=1, at_most=16_777_216)
    rope_theta: float = declared(500_000.0, above=1)
    norm_eps: float = declared(1e-6, above=0, below=1)
    qk_norm: str = "layer"  # layer (over the whole vector) | head (the cure for logit growth under Muon)
    window: int = declared(4096, at_least=1)  # keys seen by local attention
    window_includes_self: bool = (
        True  # False: `window` keys to the left plus the token itself, as Megatron counts
    )
    full_attention_every: int = declared(
        4, at_least=1
    )  # layer n of a tower, from 1, sees all if n % this == 0
    fusion: str = "normed_add"  # normed_add | add
    fusion_alpha_init: float = 0.1
    z_loss: float = declared(1e-5, at_least=0)
    concept: ConceptSpec = field(default_factory=ConceptSpec)
    ncp: NcpSpec = field(default_factory=NcpSpec)
    vq: VqSpec = field(default_factory=VqSpec)
    irc: IrcSpec = field(default_factory=IrcSpec)
    crc: CrcSpec = field(default_factory=CrcSpec)
    init: InitSpec = field(default_factory=InitSpec)

    def __post_init__(self) -> None:
        self.validate()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def segment_size(self) -> int:
        """d_c, the width of one codeword."""
        return self.hidden_size // self.concept.segments

    @property
    def token_layers(self) -> int:
        return self.encoder_layers + self.decoder_layers

    @property
    def total_layers(self) -> int:
        return self.token_layers + (self.concept_layers if self.concept.enabled else 0)

    def validate(self) -> None:
        """Raise RecipeError naming the key, the value and the fix."""
        require_bounds(self, "model")
        _require(
            self.hidden_size % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"must divide hidden_size = {self.hidden_size}",
        )
        _require(
            self.head_dim % 2 == 0,
            "num_heads",
            self.num_heads,
            f"gives an odd head size {self.head_dim}; RoPE needs even",
        )
        _require_choice("qk_norm", self.qk_norm, ("layer", "head"))
        _require_choice("fusion", self.fusion, ("normed_add", "add"))
        _require_choice("irc.cond", self.irc.cond, ("state", "delta"))
        _require_choice("init.method", self.init.method, ("scaled", "normal"))
        if self.concept.enabled:
            self._validate_concept()
        else:
            _require(
                self.token_layers >= 1,
                "encoder_layers",
                self.encoder_layers,
                "a model needs at least one layer",
            )
            _require(
                not self.crc.enabled, "crc.enabled", True, "needs concept.enabled; set crc.enabled: false"
            )

    def _validate_concept(self) -> None:
        concept = self.concept
        for key in ("encoder_layers", "concept_layers", "decoder_layers"):
            _require(
                getattr(self, key) >= 1, key, getattr(self, key), "must be at least 1 with concept.enabled"
            )
        _require(
            self.hidden_size % concept.segments == 0,
            "concept.segments",
            concept.segments,
            f"must divide hidden_size = {self.hidden_size}",
        )
        _require_choice("concept.mix", concept.mix, ("softmax", "raw_logits"))
        _require_choice("concept.readout", concept.readout, ("codebook", "hidden"))
        _require_choice("concept.codebook_init", concept.codebook_init, ("data", "normal"))
        _require_choice("ncp.target", self.ncp.target, ("normed", "pooled"))
        _require_choice("ncp.loss", self.ncp.loss, ("mse", "ce"))
        if self.crc.enabled:
            _require(
                self.encoder_layers >= 2,
                "encoder_layers",
                self.encoder_layers,
                "crc.enabled routes all encoder layers but the last into the Concept Module; use 2 or more",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSpec:
        """Build from a nested mapping (e.g. a parsed recipe); an unknown key is an error naming the nearest one."""
        return _from_mapping(cls, values, "")

    @classmethod
    def preset(cls, name: str) -> ModelSpec:
        """A named model; raises RecipeError for a name that is not in PRESETS."""
        if name not in PRESETS:
            raise RecipeError(f"model preset {name!r}: use one of {', '.join(PRESETS)}")
        return PRESETS[name]


def _from_mapping(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            raise RecipeError(f"model.{prefix}{key}: unknown key; {nearest(key, hints)}")
        nested = dataclasses.is_dataclass(hints[key])
        arguments[key] = _from_mapping(hints[key], value, f"{prefix}{key}.") if nested else value
    return cls(**arguments)


def _vanilla(layers: int) -> ModelSpec:
    return ModelSpec(
        encoder_layers=16,
        concept_layers=0,
        decoder_layers=layers - 16,
        concept=ConceptSpec(enabled=False),
        ncp=NcpSpec(weight=0.0),
        vq=VqSpec(weight=0.0),
        irc=IrcSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    )


PRESETS: dict[str, ModelSpec] = {
    "olmo3-7b-ncp": ModelSpec(),
    "olmo3-7b-vanilla-32": _vanilla(32),
    "olmo3-7b-vanilla-34": _vanilla(34),
    "olmo3-7b-vanilla-40": _vanilla(40),
    # The public checkpoint's graph (docs/model.md 0.1, second column). Loss weights and z-loss are not part of a
    # checkpoint and are not disclosed; the public training code's effective weights were 1/8192 with z-loss inactive.
    "release": ModelSpec(
        window_includes_self=False,
        z_loss=0.0,
        concept=ConceptSpec(mix="raw_logits", codebook_init="normal"),
        ncp=NcpSpec(grad_to_codebook=True),
        irc=IrcSpec(decoder_softmax=True),
    ),
    "tiny": ModelSpec(
        hidden_size=64,
        intermediate_size=192,
        num_heads=4,
        encoder_layers=2,
        concept_layers=1,
        decoder_layers=2,
        vocab_size=512,
        max_sequence_length=256,
        window=8,
        full_attention_every=2,
        concept=ConceptSpec(segments=4, entries=16),
    ),
}
