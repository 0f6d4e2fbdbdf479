"""Incremental decoding state: token caches, concept caches, the open chunk (docs/model.md 11).

A session holds B sequences of different lengths. Every call appends some tokens to each; logits equal those of the full
forward pass at every position, however the tokens are cut into calls, and after any rollback.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ncp_model.grid import ChunkGather, TokenGrid, take, window_size
from ncp_model.layers import AttentionPattern, additive_mask, rotary_angles, visibility
from ncp_model.mixing import State
from ncp_model.model import NCPModel, check_input


class SlotCache:
    """Keys and values of one layer for B sequences, position p of a sequence in slot p; the last slot is for padding.

    A LayerCache: `aim` it at the slots of the coming call first.
    """

    def __init__(self, batch: int, capacity: int, heads: int, head_dim: int, like: Tensor) -> None:
        # Zeros, as a masked slot still takes part in a product with an attention weight of zero.
        self.keys = like.new_zeros(batch, capacity + 1, heads, head_dim)
        self.values = torch.zeros_like(self.keys)

    def aim(self, slots: Tensor, visible: int) -> None:
        """Write the next rows to `slots` int64 [B, n], and attend to slots 0 .. visible - 1."""
        self._slots, self._visible = slots, visible

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As LayerCache.extend."""
        batch = torch.arange(self._slots.shape[0], device=keys.device).unsqueeze(1)
        self.keys[batch, self._slots] = keys.transpose(1, 2)
        self.values[batch, self._slots] = values.transpose(1, 2)
        return self.keys[:, : self._visible].transpose(1, 2), self.values[:, : self._visible].transpose(1, 2)


class GenerationSession:
    """B sequences growing on one model, from empty. `lengths` int64 [B] counts the tokens each holds.

    `concept_steps` counts chunks that went through the Concept Module: floor(length / k) for each sequence, as an
    incomplete chunk is never pooled, padded or predicted.
    """

    def __init__(self, model: NCPModel, batch_size: int, max_length: int) -> None:
        if batch_size < 1 or max_length < 1:
            raise ValueError(f"batch_size = {batch_size}, max_length = {max_length}: both must be at least 1")
        if max_length > model.spec.max_sequence_length:
            raise ValueError(
                f"max_length = {max_length}: the model has max_sequence_length = {model.spec.max_sequence_length} and was "
                "never trained beyond it"
            )
        if isinstance(model.embed_tokens.weight, DTensor):
            raise ValueError(
                "the model is sharded over ranks, and a session generates on one: load its checkpoint into a model that "
                "is whole (build_model, or ncp generate RUN)"
            )
        self.model, self.spec, self.max_length = model, model.spec, max_length
        weight = model.embed_tokens.weight.detach()
        self.device = weight.device
        spec = self.spec

        def caches(layers: int, capacity: int) -> list[SlotCache]:
            return [
                SlotCache(batch_size, capacity, spec.num_heads, spec.head_dim, weight) for _ in range(layers)
            ]

        self.ids = torch.zeros(batch_size, max_length + 1, dtype=torch.long, device=self.device)
        self.lengths = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        self.concept_steps = 0
        self.decoder_caches = caches(
            spec.decoder_layers if spec.concept.enabled else spec.token_layers, max_length
        )
        self.encoder_caches: list[SlotCache] = []
        self.concept_caches: list[SlotCache] = []
        if not spec.concept.enabled:
            return
        k, size = spec.concept.chunk_size, spec.hidden_size
        self.max_chunks = max_length // k
        self.encoder_caches = caches(spec.encoder_layers, max_length)
        self.concept_caches = caches(spec.concept_layers, self.max_chunks)
        # Rows as in NCPModel.concept_rows, with a spare one at the end. Keeping all of them, a quarter of a row per
        # token and layer, makes a rollback to any length possible.
        self.rows = weight.new_zeros(batch_size, self.max_chunks + 2, size)
        self.raw_rows = weight.new_zeros(batch_size, self.max_chunks + 2, spec.concept_layers, size)
        # The open chunk's last encoder states, one tensor for each state that is pooled: h, then the routes' sources.
        pooled = spec.encoder_layers if spec.crc.enabled else 1
        self.pending = [weight.new_zeros(batch_size, k, size) for _ in range(pooled)]

    @torch.no_grad()
    def append(self, ids: Tensor, counts: Tensor | None = None, *, last_only: bool = False) -> Tensor:
        """Append ids [B, n], of which sequence b takes the first counts[b] (all, by default).

        Returns logits [B, n, V], meaningless beyond counts[b]; or with `last_only` those of each sequence's last new
        token, [B, V]. Raises ValueError if ids are malformed or a sequence would exceed `max_length`.
        """
        check_input(self.spec, ids)
        batch, n = ids.shape
        if batch != len(self.lengths):
            raise ValueError(f"ids holds {batch} sequences: the session has {len(self.lengths)}")
        counts = torch.full_like(self.lengths, n) if counts is None else counts.to(self.device)
        longest = max(int((self.lengths + counts).max()), 1)
        if longest > self.max_length:
            raise ValueError(f"a sequence would reach {longest} tokens: max_length is {self.max_length}")
        positions, slots = self._place(self.lengths, counts, n, self.max_length)
        pattern = self._pattern(positions, longest)
        self.ids.scatter_(1, slots, ids.to(self.device))
        _aim(self.decoder_caches, slots, longest)

        x = self.model.embed_tokens(ids.to(self.device))
        if not self.spec.concept.enabled:
            hidden, _ = self.model.run_tower(self.model.decoder, x, pattern, self.decoder_caches)
        else:
            h, encoder_raw = self._encode(x, pattern, slots, longest)
            self._predict_concepts([h, *(state.value for state in encoder_raw[:-1])], counts)
            read = ((positions + 1) // self.spec.concept.chunk_size).clamp(max=self.max_chunks)
            rows, raw_rows = take(self.rows, read), take(self.raw_rows, read)
            hidden = self.model.decode(
                h, encoder_raw, rows, raw_rows, TokenGrid(), pattern, self.decoder_caches
            )
        self.lengths = self.lengths + counts
        if last_only:
            hidden = take(hidden, (counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        return self.model.lm_head(self.model.final_norm(hidden))

    @torch.no_grad()
    def rollback(self, lengths: Sequence[int] | Tensor) -> None:
        """Shorten each sequence to lengths[b] tokens, as if the rest had never been appended.

        The tokens of a chunk that this re-opens run through the encoder once more. Raises ValueError for a length that
        is negative or greater than the sequence has.
        """
        target = torch.as_tensor(lengths, device=self.device)
        if target.shape != self.lengths.shape or bool(((target < 0) | (target > self.lengths)).any()):
            raise ValueError(f"lengths = {target.tolist()}: each must lie in 0 .. {self.lengths.tolist()}")
        if self.spec.concept.enabled:
            k = self.spec.concept.chunk_size
            start = target // k * k
            reopened = start < self.lengths // k * k
            counts = (target - start) * reopened
            if int(counts.max()) > 0:
                self._replay(start, counts, int(counts.max()))
        self.lengths = target.clone()

    def select(self, indices: Sequence[int] | Tensor) -> GenerationSession:
        """A new session holding copies of the sequences `indices`, in that order, repeats allowed (shared prefixes)."""
        index = torch.as_tensor(indices, device=self.device)
        other = object.__new__(GenerationSession)
        other.__dict__.update(self.__dict__)
        for name in ("ids", "lengths", "rows", "raw_rows"):
            if hasattr(self, name):
                setattr(other, name, getattr(self, name).index_select(0, index))
        if hasattr(self, "pending"):
            other.pending = [part.index_select(0, index) for part in self.pending]
        for name in ("encoder_caches", "concept_caches", "decoder_caches"):
            setattr(other, name, [_select_cache(cache, index) for cache in getattr(self, name)])
        return other

    @staticmethod
    def _place(start: Tensor, counts: Tensor, n: int, spare: int) -> tuple[Tensor, Tensor]:
        """Positions start[b] + i, and the slots they go to: `spare` for i >= counts[b]. Both int64 [B, n]."""
        offsets = torch.arange(n, device=start.device)
        positions = start.unsqueeze(1) + offsets
        return positions, torch.where(offsets < counts.unsqueeze(1), positions, spare)

    def _pattern(self, positions: Tensor, visible: int, stride: int = 1) -> AttentionPattern:
        spec = self.spec
        cos, sin = rotary_angles(positions * stride, spec.head_dim, spec.rope_theta)
        slots = torch.arange(visible, device=self.device)
        like = self.model.embed_tokens.weight
        return AttentionPattern(
            cos=cos,
            sin=sin,
            local_mask=additive_mask(visibility(positions, slots, window_size(spec)).unsqueeze(1), like),
            full_mask=additive_mask(visibility(positions, slots, None).unsqueeze(1), like),
        )

    def _encode(
        self, x: Tensor, pattern: AttentionPattern, slots: Tensor, visible: int
    ) -> tuple[Tensor, list[State]]:
        _aim(self.encoder_caches, slots, visible)
        return self.model.run_tower(self.model.encoder, x, pattern, self.encoder_caches)

    def _predict_concepts(self, states: list[Tensor], counts: Tensor) -> None:
        """Run the Concept Module over the chunks that `counts` new encoder states complete, and keep the open chunk.

        This comes before the new tokens are decoded: a chunk's last token already reads the chunk's prediction.
        """
        k = self.spec.concept.chunk_size
        states = states[: len(self.pending)]
        waiting = self.lengths % k
        first = self.lengths // k
        completed = (waiting + counts) // k
        window = [torch.cat((old, new), dim=1) for old, new in zip(self.pending, states, strict=True)]

        def since_chunk_start(offsets: Tensor) -> Tensor:
            """Index into `window` of the token `offsets` after the open chunk's start."""
            index = torch.where(offsets < waiting.unsqueeze(1), offsets, offsets - waiting.unsqueeze(1) + k)
            return index.clamp(max=window[0].shape[1] - 1)

        m = int(completed.max())
        if m > 0:
            members = since_chunk_start(torch.arange(m * k, device=self.device).expand(len(counts), -1))
            pool = ChunkGather(members, k)
            numbers, slots = self._place(first, completed, m, self.max_chunks)
            visible = int((first + completed).max())
            pattern = self._pattern(numbers, visible, self.spec.concept.rope_stride)
            _aim(self.concept_caches, slots, visible)
            raw = [State(part) for part in (*window[1:], window[0])]
            concept = self.model.predict_concepts(window[0], raw, pool, pattern, self.concept_caches)
            rows = torch.where(slots < self.max_chunks, slots + 1, self.max_chunks + 1)
            batch = torch.arange(len(counts), device=self.device).unsqueeze(1)
            self.rows[batch, rows] = concept.predicted
            self.raw_rows[batch, rows] = torch.stack(concept.raw, dim=2)
            self.concept_steps += int(completed.sum())
        rest = since_chunk_start(completed.unsqueeze(1) * k + torch.arange(k, device=self.device))
        self.pending = [take(part, rest) for part in window]

    def _replay(self, start: Tensor, counts: Tensor, n: int) -> None:
        """Recompute the encoder states of the chunk that a rollback re-opens, from its tokens."""
        positions, slots = self._place(start, counts, n, self.max_length)
        longest = int((start + counts).max())
        x = self.model.embed_tokens(self.ids.gather(1, positions.clamp(max=self.max_length)))
        h, encoder_raw = self._encode(x, self._pattern(positions, longest), slots, longest)
        reopened = (counts > 0).view(-1, 1, 1)
        states = [h, *(state.value for state in encoder_raw[:-1])]
        for index, old in enumerate(self.pending):
            self.pending[index] = torch.where(reopened, _padded(states[index], old.shape[1]), old)


def _padded(x: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, length - x.shape[1]))


def _aim(caches: list[SlotCache], slots: Tensor, visible: int) -> None:
    for cache in caches:
        cache.aim(slots, visible)


def _select_cache(cache: SlotCache, index: Tensor) -> SlotCache:
    other = object.__new__(SlotCache)
    other.keys, other.values = cache.keys.index_select(0, index), cache.values.index_select(0, index)
    return other
