"""Tokenizers in the shapes of the public ones, used with the ids of the whole text or refused by what they lose."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rust

from pipeline.data import tokenizer as tokenizer_module
from pipeline.data.errors import TokenizerError
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.storage import Storage

TEXTS = list(topics.values())[:30]
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPANNING = r"\w+ \w+|\w+|\W"


def byte_level(
    *special: str,
    pattern: str = "",
    behavior: str = "isolated",
    invert: bool = False,
    prefix: bool = False,
    nfc: bool = False,
) -> bytes:
    """A byte-level BPE trained on real text, split as GPT-2 does or by `pattern`."""
    tokenizer = Rust(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not pattern)
    split = [pre_tokenizers.Split(Regex(pattern), behavior, invert)] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if split else level
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[AddedToken(name, special=True) for name in special or ("<|endoftext|>",)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer.to_str().encode()


def sentence_piece(*, fallback: bool = True, without: int | None = None) -> bytes:
    """The shape that transformers makes of a SentencePiece BPE: blanks as U+2581, bytes as `<0x00>`, `</s>`."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if byte != without)]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "\u2581a", "th", "\u2581th"]
    merges = [("\u2581", "a"), ("t", "h"), ("\u2581", "th")]
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=merges,
        unk_token="<unk>",
        byte_fallback=fallback,
        fuse_unk=True,
    )
    tokenizer = Rust(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.to_str().encode()


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    config = json.loads(byte_level())
    change(config)
    return json.dumps(config).encode()


def without_byte(config: dict[str, Any], sign: str) -> None:
    model = config["model"]
    model["vocab"] = {piece: number for piece, number in model["vocab"].items() if sign not in piece}
    model["merges"] = [pair for pair in model["merges"] if sign not in "".join(pair)]


def public() -> dict[str, Tokenizer]:
    return {
        "gpt-2": Tokenizer(byte_level()),
        "olmo-1": Tokenizer(byte_level(nfc=True)),
        "olmo-2": Tokenizer(byte_level(pattern=CL100K, behavior="removed", invert=True)),
        "llama-3": Tokenizer(
            byte_level("<|begin_of_text|>", "<|end_of_text|>", pattern=CL100K), "<|end_of_text|>"
        ),
        "llama-2": Tokenizer(sentence_piece(), "</s>"),
        "prefix": Tokenizer(byte_level(prefix=True)),
        "spanning": Tokenizer(byte_level(pattern=SPANNING)),
    }


PUBLIC = public()
TEXT = st.text(st.one_of(st.sampled_from("ab1Z \n\r\t.,'<|>_-\u00e9\u0301\u4f60\u0430\u00b2\u2167\U0001fae0"), st.characters(exclude_categories=["Cs"])), max_size=60)  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
@settings(max_examples=60, deadline=None)
@given(text=TEXT)
def test_ids_of_cut_texts_are_those_that_tokenizers_gives_for_the_whole(name: str, text: str) -> None:
    tokenizer = PUBLIC[name]
    plain = Rust.from_str(tokenizer.data.decode())
    plain.encode_special_tokens = True
    before, tokenizer_module.PIECE_CHARS = tokenizer_module.PIECE_CHARS, 2
    try:
        assert tokenizer.encode(text) == plain.encode(text, add_special_tokens=False).ids
    finally:
        tokenizer_module.PIECE_CHARS = before


def test_only_known_patterns_are_cut() -> None:
    cut = {name for name, tokenizer in PUBLIC.items() if len(list(_pieces(tokenizer))) > 1}
    assert cut == {"gpt-2", "olmo-2", "llama-3"}


def _pieces(tokenizer: Tokenizer):
    return tokenizer._pieces("some words " * 20_000)


@pytest.mark.parametrize(
    ("data", "eos", "message"),
    [
        (changed(lambda c: c["model"].update(dropout=0.3)), "", r"model\.dropout is 0\.3, so the same text"),
        (
            changed(lambda c: without_byte(c, "\u010d")),
            "",
            r"'\\r' \(bytes 0d\) between letters comes back as 'ab'",
        ),
        (changed(lambda c: without_byte(c, "\u0120")), "", r"' ' \(bytes 20\)"),
        (changed(lambda c: without_byte(c, "\u00d0")), "", r"\(bytes d0"),
        (changed(lambda c: c.update(normalizer={"type": "Lowercase"})), "", r"'A' \(bytes 41\)"),
        (changed(lambda c: c.update(normalizer={"type": "StripAccents"})), "", r"comes back as"),
        (changed(lambda c: c.update(pre_tokenizer=None, decoder=None)), "", r"comes back as"),
        (sentence_piece(fallback=False), "</s>", r"comes back as '.*<unk>"),
        (sentence_piece(without=0x0D), "</s>", r"'\\r' \(bytes 0d\)"),
        (
            sentence_piece(),
            "",
            r"tokenizer\.eos_token: it has no '<\|endoftext\|>'.* one of its special tokens: .*'</s>'",
        ),
        (byte_level(), "</s>", r"it has no '</s>'.*: '<\|endoftext\|>'"),
        (
            changed(lambda c: c["added_tokens"][0].update(special=False)),
            "",
            r"eos_token: '<\|endoftext\|>' is no special token",
        ),
        (b'{"version": "1.0"', "", "not a tokenizer.json"),
        (b"\xff\xfe", "", "not a tokenizer.json"),
    ],
)
def test_a_tokenizer_that_loses_text_or_draws_at_random_is_refused(
    data: bytes, eos: str, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer(data, eos)


def test_holes_count_in_the_size() -> None:
    config = json.loads(byte_level())
    last = max(config["model"]["vocab"].values())
    config["model"]["vocab"] = {
        piece: 5000 if number == last else number for piece, number in config["model"]["vocab"].items()
    }
    assert Tokenizer(json.dumps(config).encode()).vocab_size == 5001


def test_the_end_of_text_goes_with_the_file(tmp_path) -> None:
    storage = Storage(str(tmp_path))
    llama = PUBLIC["llama-2"]
    llama.save(storage, "steps/t/tokenizer.json")
    for copy in (Tokenizer.load(storage, "steps/t/tokenizer.json"), pickle.loads(pickle.dumps(llama))):
        assert (copy.eos_token, copy.eos_id, copy.sha256) == ("</s>", 2, llama.sha256)
    PUBLIC["gpt-2"].save(storage, "steps/u/tokenizer.json")
    assert storage.keys("steps/u") == ["steps/u/tokenizer.json"]
    assert Tokenizer.load(storage, "steps/u/tokenizer.json").eos_token == "<|endoftext|>"


def test_the_trained_tokenizer_is_the_one_it_always_was() -> None:
    assert Tokenizer(train_bpe(TEXTS, 700)).vocab_size == 700
