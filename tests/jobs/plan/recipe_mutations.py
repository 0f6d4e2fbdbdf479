"""Real recipes, damaged: the fuzz of `ncp plan` draws from these. Everything follows from one seed."""

from __future__ import annotations

import random
import re

from curriculum.load import bundled_recipes, merged_yaml

EXTREMES = [
    *(
        "-1",
        "0",
        "1",
        "1e400",
        "-1e400",
        ".nan",
        ".inf",
        "-.inf",
        "1e-320",
        "9223372036854775808",
        "9" * 500,
        "0x10",
        "007",
    ),
    *(
        "12:30",
        "2026_01_05",
        "1_000",
        "off",
        "yes",
        "null",
        "~",
        "''",
        '""',
        "[]",
        "{}",
        "[1]",
        "[[[]]]",
        "{a: 1}",
        "{a: {b: []}}",
    ),
    *(
        "true",
        "'quoted'",
        "*alias",
        "&anchor x",
        "!!python/name:os.system",
        "${recipe}",
        "${nope}",
        "${oc.env:HOME}",
        "${oc.env:NO}",
    ),
    *(
        "${${a}}",
        "${",
        "| ",
        "> ",
        "@x",
        "`x`",
        "%x",
        "a: b",
        "a # b",
        "- x",
        "../../etc",
        "s3://u:p@b/x",
        "\u00e9\u4e2d",
        "\U0001f600",
    ),
    *(
        "x" * 3000,
        "1.5",
        "2.5e3",
        "[1, 2, 3]",
        "[null]",
        "{null: null}",
        "<<",
        "quick",
        "[quick, quick]",
        "stage1",
        "stage2",
    ),
]
DAMAGE = [
    "\t",
    "\0",
    "\x07",
    "\x1b",
    "\x85",
    "\u2028",
    "\ufeff",
    ":",
    "#",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    "\\",
    "\n",
    "\r",
    "-",
    "%",
    "&",
    "*",
    "!",
]
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-8-sig", "utf-7", "cp037"]
_VALUE = re.compile(r"(?<=: )[^{}\[\],#\n]+")
_KEY = re.compile(r"[\w.-]+(?=:)")


def mutated_recipe(seed: int) -> bytes:
    """One damaged recipe. The same seed gives the same bytes, on every machine."""
    draw = random.Random(seed)
    name = draw.choice(bundled_recipes())
    text = merged_yaml(name) if draw.random() < 0.6 else f"extends: {name}\n" + _pieces(draw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        text = draw.choice(_MUTATIONS)(draw, text)
    encoding = draw.choice(ENCODINGS) if draw.random() < 0.04 else "utf-8"
    data = text.encode(encoding, errors="replace")
    if draw.random() < 0.04 and data:
        at = draw.randrange(len(data))
        data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    return data


def _pieces(draw: random.Random) -> str:
    """A small recipe over a bundled one, with all the ways of laying over."""
    pieces = [
        "recipe: mine",
        "stages: {stage1: {mixture: {stdlib-code: 1}}}",
        "stages.stage1.optimizer.lr: 1e-3",
        "stages.stage1.tokens: 1048576",
        "runtime: {num_workers: [1, 2], locations: {study-prose: /x}}",
        "sources.extra: {tokens: 1000000, clean: {filters: [c4], settings: {c4: {min_num_sentences: 3}}}}",
        "model: {preset: tiny}",
        "stages.stage1.gate: {metric: mixture.model.bits_per_byte, max: 3.0}",
        "stages.stage1.evaluation: {suites: [quick], every_steps: 50}",
        "description: of ${recipe} and ${oc.env:HOME}",
        "generations: {stage1: 1}",
        "data: {heldout_fraction: 0.01}",
    ]
    return "\n".join(draw.sample(pieces, draw.randrange(1, 6))) + "\n"


def _delete_line(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for index, line in enumerate(lines) if index != draw.randrange(max(1, len(lines))))


def _duplicate_line(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at, to = draw.randrange(len(lines) or 1), draw.randrange(len(lines) + 1)
    return "".join([*lines[:to], *lines[at : at + draw.choice((1, 3))], *lines[to:]])


def _rename_key(draw: random.Random, text: str) -> str:
    found = list(_KEY.finditer(text))
    if not found:
        return text
    key = draw.choice(found)
    at = draw.randrange(len(key[0]) + 1)
    name = draw.choice(
        [key[0][:at] + draw.choice("xq.-_") + key[0][at:], key[0][:at], key[0].upper(), draw.choice(found)[0]]
    )
    return text[: key.start()] + name + text[key.end() :]


def _replace_value(draw: random.Random, text: str) -> str:
    found = list(_VALUE.finditer(text))
    if not found:
        return text
    value = draw.choice(found)
    return text[: value.start()] + draw.choice(EXTREMES) + text[value.end() :]


def _swap_values(draw: random.Random, text: str) -> str:
    found = list(_VALUE.finditer(text))
    if len(found) < 2:
        return text
    first, second = sorted(draw.sample(found, 2), key=lambda match: match.start())
    return (
        text[: first.start()]
        + second[0]
        + text[first.end() : second.start()]
        + first[0]
        + text[second.end() :]
    )


def _damage(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(DAMAGE) + text[at + draw.choice((0, 1)) :]


def _cut(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text) + 1)
    return (
        text[:at] if draw.random() < 0.5 else text[:at] + text[min(len(text), at + draw.randrange(1, 60)) :]
    )


def _indent(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    at = draw.randrange(len(lines))
    lines[at] = (
        draw.choice(("  ", " ", "\t", "        ")) + lines[at] if draw.random() < 0.6 else lines[at].lstrip()
    )
    return "".join(lines)


def _insert_key(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = draw.randrange(len(lines) + 1)
    key = draw.choice(
        (
            "x",
            "recipe",
            "stages",
            "<<",
            "stages.stage1",
            "sources.a.b.c",
            "?",
            "runtime.notify.url",
            "ladder",
            "- a",
        )
    )
    return "".join([*lines[:at], f"{key}: {draw.choice(EXTREMES)}\n", *lines[at:]])


_MUTATIONS = (
    *(_delete_line, _duplicate_line, _rename_key, _replace_value, _replace_value, _replace_value),
    *(_swap_values, _damage, _cut, _indent, _insert_key),
)
