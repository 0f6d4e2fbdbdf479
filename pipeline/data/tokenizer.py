"""Text to token ids: a byte-level BPE, trained here or loaded, with one policy for special tokens.

A literal `<|endoftext|>` in a text is text (OLMo's own toolkit turns it into the control token unless told not to),
except for sources whose special tokens are real, such as fill-in-the-middle code.

What a file may silently lose or change is proved when it is loaded (`pipeline.data.tokenizer_proof`). Long texts are
encoded in pieces only by tokenizers for which that gives the ids of the whole text, in memory that does not grow.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from pipeline.data.errors import TokenizerError
from pipeline.data.tokenizer_proof import check_repeatable, cuts_are_exact, prove_round_trip
from pipeline.storage import Storage

END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"
CONFIG = "tokenizer_config.json"

PIECE_CHARS = 1 << 17
"""A text longer than this is encoded in pieces of about this length."""
MAX_PIECE_CHARS = 1 << 22
"""A piece without any word boundary is cut here all the same, and counted."""
BATCH_CHARS = 1 << 19
"""Texts are handed to the encoder in batches of about this many characters."""

_SAFE_CUT = re.compile(r"[^\W_](?=[ \n])")


class Tokenizer:
    """A tokenizer file, loaded and proved. Pickles as its bytes.

    `eos_token` names the control token that closes a document; empty means `<|endoftext|>`. Raises TokenizerError for a
    file that is none, that draws its pieces at random, that loses text, or that has no such control token.
    """

    def __init__(self, data: bytes, eos_token: str = ""):
        self.data = data
        self.eos_token = eos_token or END_OF_TEXT
        self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            config = json.loads(data)
            self._rust = RustTokenizer.from_str(data.decode())
        except Exception as error:  # the Rust side raises plain Exception
            raise TokenizerError(f"tokenizer: not a tokenizer.json ({error})") from error
        check_repeatable(config)
        self._rust.no_padding()
        self._rust.no_truncation()
        vocabulary = self._rust.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """The largest id + 1: what a model's embedding must hold. There may be fewer entries."""
        eos = vocabulary.get(self.eos_token)
        if eos is None:
            special = [token["content"] for token in config.get("added_tokens", []) if token.get("special")]
            known = ", ".join(repr(name) for name in special[:8]) or "none"
            raise TokenizerError(
                f"tokenizer.eos_token: it has no {self.eos_token!r}, which closes every document; set tokenizer.eos_token "
                f"to one of its special tokens: {known}"
            )
        self.eos_id: int = eos
        self.pad_id: int | None = self._rust.token_to_id(PADDING)
        self.forced_cuts = 0
        self._splittable = cuts_are_exact(config)
        self.exact = not config.get("normalizer")
        """Whether a text comes back byte for byte, not only in its normal form."""
        prove_round_trip(self._rust)
        if self.eos_id in self._rust.encode(self.eos_token, add_special_tokens=False).ids:
            raise TokenizerError(
                f"tokenizer.eos_token: {self.eos_token!r} is no special token of the file, so a text that holds those characters "
                "would end there; mark it special, or choose another"
            )

    @staticmethod
    def from_bytes(data: bytes) -> Tokenizer:
        return Tokenizer(data)

    @staticmethod
    def load(storage: Storage, key: str) -> Tokenizer:
        """The tokenizer.json at `key`; a `tokenizer_config.json` beside it may name its end of text, as elsewhere."""
        config = f"{key.rpartition('/')[0]}/{CONFIG}".lstrip("/")
        name: object = (
            json.loads(storage.read_bytes(config)).get("eos_token") if storage.exists(config) else ""
        )
        if isinstance(name, dict):  # older transformers write the whole token
            name = name.get("content")
        return Tokenizer(storage.read_bytes(key), name if isinstance(name, str) else "")

    def save(self, storage: Storage, key: str) -> None:
        """Write the file to `key`, and beside it the name of its end of text where that is not the usual one."""
        if self.eos_token != END_OF_TEXT:
            config = json.dumps({"eos_token": self.eos_token}).encode()
            storage.write_bytes(f"{key.rpartition('/')[0]}/{CONFIG}".lstrip("/"), config)
        storage.write_bytes(key, self.data)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, str]]:
        return Tokenizer, (self.data, self.eos_token)

    def encode(self, text: str, special_tokens: str = "text") -> list[int]:
        """Ids of one text, without BOS or EOS."""
        return self.encode_batch([text], special_tokens)[0].tolist()

    def encode_batch(self, texts: Sequence[str], special_tokens: str = "text") -> list[NDArray[np.uint32]]:
        """Ids of each text, without BOS or EOS.

        `special_tokens`: "text" encodes a literal special token as the characters it is made of, "keep" as the
        control token. A text must hold no lone surrogates (the readers replace them).
        """
        if special_tokens not in ("text", "keep"):
            raise ValueError(f"special_tokens: {special_tokens!r} is not one of 'text', 'keep'")
        self._rust.encode_special_tokens = special_tokens == "text"
        pieces: list[tuple[int, str]] = [
            (index, piece) for index, text in enumerate(texts) for piece in self._pieces(text)
        ]
        encoded: list[list[NDArray[np.uint32]]] = [[] for _ in texts]
        for batch in _batches(pieces):
            fast = self._rust.encode_batch_fast([piece for _, piece in batch], add_special_tokens=False)
            for (index, _), encoding in zip(batch, fast, strict=True):
                encoded[index].append(np.array(encoding.ids, dtype=np.uint32))
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ids; control tokens appear by name unless skipped."""
        return self._rust.decode(np.asarray(ids).tolist(), skip_special_tokens=skip_special_tokens)

    def _pieces(self, text: str) -> Iterator[str]:
        if len(text) <= PIECE_CHARS or not self._splittable:
            yield text
            return
        start = 0
        while len(text) - start > PIECE_CHARS:
            cut = _safe_cut(text, start + PIECE_CHARS - 1, start + MAX_PIECE_CHARS)
            if cut:
                end = cut
            elif len(text) - start <= MAX_PIECE_CHARS:
                break
            else:
                end = start + MAX_PIECE_CHARS
                self.forced_cuts += 1
            yield text[start:end]
            start = end
        yield text[start:]


def train_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train a byte-level BPE with GPT-2's pre-tokenization and return its `tokenizer.json`.

    Ids 0 and 1 are `<|endoftext|>` and `<|pad|>`, then the 256 bytes, then merges, so any text can be encoded and
    decoded exactly. The same texts in the same order give the same bytes.
    """
    smallest = 256 + 2
    if vocab_size < smallest:
        raise ValueError(
            f"tokenizer.train.vocab_size: {vocab_size} is below {smallest} (256 bytes and 2 special tokens)"
        )
    tokenizer = RustTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END_OF_TEXT, special=True), AddedToken(PADDING, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    first, texts = _peek(texts)
    if first is None:
        raise ValueError("tokenizer.train.sources: there is no text to train on; check the sources")
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _batches(pieces: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    start, chars = 0, 0
    for end, (_, piece) in enumerate(pieces):
        if chars and chars + len(piece) > BATCH_CHARS:
            yield pieces[start:end]
            start, chars = end, 0
        chars += len(piece)
    if start < len(pieces):
        yield pieces[start:]


def _safe_cut(text: str, start: int, end: int) -> int | None:
    """The first place between a letter or digit and a blank. Only what Unicode 3.2 already called so counts: a newer
    letter may be an unknown sign, which takes a following newline along, to the tokenizer's own tables."""
    for match in _SAFE_CUT.finditer(text, start, end):
        if unicodedata.ucd_3_2_0.category(match.group())[0] in "LN":
            return match.end()
    return None


def _peek(texts: Iterable[str]) -> tuple[str | None, Iterator[str]]:
    iterator = iter(texts)
    first = next(iterator, None)
    return first, iterator if first is None else itertools.chain([first], iterator)
