"""The NCP network: encode tokens, predict the next concept, decode tokens (docs/model.md 2).

    x0 = Emb(ids)            -> encoder  -> h                    token resolution
    z  = LN(mean of k h's)   -> concept  -> predicted concept    chunk resolution
    v0 = LN(h) + a LN(b)     -> decoder  -> logits               b = prediction, repeated and causally shifted

With `concept.enabled: false` the same module is the plain OLMo 3 stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curriculum.model_spec import ModelSpec
from ncp_model.grid import ChunkGather, ChunkGrid, TokenGrid, make_grid
from ncp_model.init import initialize_weights
from ncp_model.layers import AttentionPattern, LayerCache, RMSNorm
from ncp_model.losses import (
    IGNORE,
    LossDenominators,
    linear_cross_entropy,
    logits_cross_entropy,
    masked_sum,
    next_code_error,
    next_concept_error,
    ratio,
    valid_chunks,
)
from ncp_model.mixing import State
from ncp_model.output import ConceptOutput, ModelOutput
from ncp_model.quantizer import ConceptPredictor
from ncp_model.residual import Fusion, RouteNorms, row_sources, token_sources
from ncp_model.towers import ConceptLayer, DecoderLayer, EncoderLayer

Caches = Sequence[LayerCache]  # one for each layer of a tower


class NCPModel(nn.Module):
    """The network of a ModelSpec. Build it with `build_model`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        size, eps = spec.hidden_size, spec.norm_eps
        self.embed_tokens = nn.Embedding(spec.vocab_size, size)
        if spec.concept.enabled:
            self.encoder = nn.ModuleList(EncoderLayer(spec, number=n + 1) for n in range(spec.encoder_layers))
            self.vq_norm = nn.LayerNorm(size, eps=eps)
            self.concept = nn.ModuleList(ConceptLayer(spec, number=n + 1) for n in range(spec.concept_layers))
            self.concept_norm = RMSNorm(size, eps)
            self.predictor = ConceptPredictor(spec)
            self.route_norms = RouteNorms(spec) if spec.crc.enabled else None
            self.fusion = Fusion(spec) if spec.fusion == "normed_add" else None
            self.decoder = nn.ModuleList(DecoderLayer(spec, number=n + 1) for n in range(spec.decoder_layers))
        else:
            self.decoder = nn.ModuleList(EncoderLayer(spec, number=n + 1) for n in range(spec.token_layers))
        self.final_norm = RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, spec.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        *,
        doc_starts: Tensor | None = None,
        denominators: LossDenominators | None = None,
        return_logits: bool | None = None,
        zero_concept: bool = False,
    ) -> ModelOutput:
        """Run the network, and its losses if `labels` are given.

        `input_ids` and `labels` are int64 [B, T]; `labels` are next-token targets aligned with positions, -100 ignored.
        `doc_starts` packs documents (see DocumentGrid). `denominators` divide the loss sums, by default this batch's own
        counts. Logits [B, T, V] are returned by default only without labels. `zero_concept` decodes as if no concept
        had been predicted yet (an ablation for evaluation). Raises ValueError for malformed input.
        """
        check_input(self.spec, input_ids, labels, doc_starts)
        grid = make_grid(input_ids.shape[1], self.spec.concept.chunk_size, doc_starts)
        x = self.embed_tokens(input_ids)
        token_pattern, concept_pattern = grid.patterns(self.spec, x)
        concept = None
        if not self.spec.concept.enabled:
            hidden, _ = self.run_tower(self.decoder, x, token_pattern)
        else:
            h, encoder_raw = self.run_tower(self.encoder, x, token_pattern)
            if grid.chunks:
                concept = self.predict_concepts(h, encoder_raw, grid, concept_pattern)
            rows, raw_rows = self.concept_rows(h, None if zero_concept else concept, grid)
            hidden = self.decode(h, encoder_raw, rows, raw_rows, grid, token_pattern)
        hidden = self.final_norm(hidden)

        want_logits = labels is None if return_logits is None else return_logits
        logits = self.lm_head(hidden) if want_logits else None
        if labels is None:
            return ModelOutput(logits=logits, concept=None if concept is None else concept.detached())
        return self.losses(hidden, logits, labels, concept, grid, denominators)

    @staticmethod
    def run_tower(
        layers: nn.ModuleList, x: Tensor, pattern: AttentionPattern, caches: Caches | None = None
    ) -> tuple[Tensor, list[State]]:
        """Run layers that read nothing but their own tower: output, and the raw output of each layer, [B, T, d]."""
        history = [State(x)]
        for layer, cache in zip(layers, caches or [None] * len(layers), strict=True):
            raw, x = layer(x, history, pattern, cache)
            history.append(State(raw))
        return x, history[1:]

    def predict_concepts(
        self,
        h: Tensor,
        encoder_raw: Sequence[State],
        grid: ChunkGrid | ChunkGather,
        pattern: AttentionPattern,
        caches: Caches | None = None,
    ) -> ConceptOutput:
        """Pool h [B, T, d] into chunks and predict, from chunks 0 .. j, concept j + 1 (docs/model.md 2.3 - 2.5)."""
        pooled = grid.pool(h)
        z = self.vq_norm(pooled)
        sources = None
        if self.route_norms is not None:
            read = [State(grid.pool(raw.value)) for raw in encoder_raw[:-1]]
            sources = token_sources(read, self.route_norms.encoder_to_concept)
        y, history = z, [State(z)]
        for layer, cache in zip(self.concept, caches or [None] * len(self.concept), strict=True):
            raw, y = layer(y, history, pattern, sources, cache)
            history.append(State(raw))
        prediction = self.predictor(self.concept_norm(y), z)
        target = z if self.spec.ncp.target == "normed" else pooled
        return ConceptOutput(
            **prediction._asdict(),
            target=target.detach(),
            normed=z,
            raw=tuple(state.value for state in history[1:]),
        )

    def concept_rows(
        self, h: Tensor, concept: ConceptOutput | None, grid: ChunkGrid
    ) -> tuple[Tensor, Tensor]:
        """What tokens may read: predictions [B, M + 1, d] and raw concept states [B, M + 1, C, d], row 0 being zero."""
        if concept is None:  # nothing predicted: every token reads a zero row
            rows = h.new_zeros(h.shape[0], grid.chunks + 1, h.shape[2])
            return rows, rows.unsqueeze(2).expand(-1, -1, self.spec.concept_layers, -1)
        raw = torch.stack(concept.raw, dim=2)
        return F.pad(concept.predicted, (0, 0, 1, 0)), F.pad(raw, (0, 0, 0, 0, 1, 0))

    def decode(
        self,
        h: Tensor,
        encoder_raw: Sequence[State],
        rows: Tensor,
        raw_rows: Tensor,
        grid: ChunkGrid | TokenGrid,
        pattern: AttentionPattern,
        caches: Caches | None = None,
    ) -> Tensor:
        """Fuse h [B, T, d] with the concept rows and run the decoder (docs/model.md 2.6, 2.10)."""
        x = grid.add_rows(h, rows) if self.fusion is None else self.fusion(h, rows, grid)
        encoder_sources = concept_sources = None
        if self.route_norms is not None:
            encoder_sources = token_sources(encoder_raw, self.route_norms.encoder_to_decoder)
            concept_sources = row_sources(raw_rows, self.route_norms.concept_to_decoder, grid)
        history = [State(x)]
        for layer, cache in zip(self.decoder, caches or [None] * len(self.decoder), strict=True):
            raw, x = layer(x, history, pattern, grid, rows, encoder_sources, concept_sources, cache)
            history.append(State(raw))
        return x

    def losses(
        self,
        hidden: Tensor,
        logits: Tensor | None,
        labels: Tensor,
        concept: ConceptOutput | None,
        grid: ChunkGrid,
        denominators: LossDenominators | None,
    ) -> ModelOutput:
        """L = NTP + z + alpha NCP + beta VQ (docs/model.md 6), from the final hidden states [B, T, d]."""
        spec = self.spec
        if logits is None:
            objective, ntp, z = linear_cross_entropy(hidden, self.lm_head.weight, labels, spec.z_loss)
        else:
            objective, ntp, z = logits_cross_entropy(logits, labels, spec.z_loss)
        tokens = (labels != IGNORE).sum()
        if concept is None:
            zero = torch.zeros_like(ntp)
            counts = LossDenominators(ntp=tokens, ncp=zero, vq=zero)
            loss = ratio(objective, (denominators or counts).ntp)
            return ModelOutput(loss=loss, ntp=ntp, ncp=zero, vq=zero, z=z, counts=counts, logits=logits)

        concept.valid = valid_chunks(labels, grid)
        concept.pair_valid = grid.consecutive(concept.valid)
        if spec.ncp.loss == "mse":
            errors = next_concept_error(concept.predicted_for_loss, concept.target)
        else:
            errors = next_code_error(concept.logits, concept.codes)
        ncp = masked_sum(errors, concept.pair_valid)
        vq = masked_sum(concept.vq_error, concept.valid)
        counts = LossDenominators(ntp=tokens, ncp=concept.pair_valid.sum(), vq=concept.valid.sum())
        den = denominators or counts
        loss = (
            ratio(objective, den.ntp)
            + spec.ncp.weight * ratio(ncp, den.ncp)
            + spec.vq.weight * ratio(vq, den.vq)
        )
        return ModelOutput(
            loss=loss, ntp=ntp, ncp=ncp, vq=vq, z=z, counts=counts, logits=logits, concept=concept.detached()
        )


def check_input(
    spec: ModelSpec, input_ids: Tensor, labels: Tensor | None = None, doc_starts: Tensor | None = None
) -> None:
    """Raise ValueError for an empty batch, shapes that differ, or (on a CPU) ids outside the vocabulary."""
    if input_ids.ndim != 2 or input_ids.shape[0] == 0 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}: needs [B, T] with B, T >= 1")
    for name, tensor in (("labels", labels), ("doc_starts", doc_starts)):
        if tensor is not None and tensor.shape != input_ids.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: must equal input_ids' {tuple(input_ids.shape)}"
            )
    if input_ids.device.type != "cpu" or torch.compiler.is_compiling():
        return  # reading values back would stall the device, whose own bounds check still aborts
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= spec.vocab_size:
        raise ValueError(
            f"input_ids holds ids {low} .. {high}: must lie in 0 .. {spec.vocab_size - 1}; "
            "does the tokenizer match model.vocab_size?"
        )
    if labels is not None:
        wrong = labels[(labels != IGNORE) & ((labels < 0) | (labels >= spec.vocab_size))]
        if len(wrong):
            raise ValueError(
                f"labels holds {int(wrong[0])}: must be {IGNORE} or lie in 0 .. {spec.vocab_size - 1}"
            )


def build_model(
    spec: ModelSpec, *, device: str | torch.device = "cpu", seed: int = 0, dtype: torch.dtype = torch.float32
) -> NCPModel:
    """Build the network of `spec`.

    On "meta" the parameters hold nothing: `to_empty` and `initialize_weights` follow once the model is sharded. On any
    other device they are initialised from `seed`.
    """
    with torch.device("meta"):
        model = NCPModel(spec).to(dtype)
    if torch.device(device).type == "meta":
        return model
    model = model.to_empty(device=device)
    initialize_weights(model, spec, seed)
    return model
