"""The text of a recipe as a tree that still knows how everything was written, and where.

YAML's own rules turn `2026_01_05` into a number, `12:30` into 750 and `off` into false. Here a scalar stays the text it was
written as (`Written`), and only the type that the schema asks for decides what it means (`curriculum.scalars`). Every node
carries its place, so that an error found much later can still name file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from curriculum.errors import RecipeError

MAX_BYTES = 1024 * 1024
"""A larger file is no recipe."""
MAX_DEPTH = 32
MAX_NODES = 100_000
"""Entries after aliases and interpolations are written out: what a recipe may blow up to."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Written(str):
    """A scalar without quotes, as it was written. A quoted one is a plain `str`."""


@dataclass
class Scalar:
    text: str
    """A `Written`, or a quoted `str`."""
    where: str


@dataclass
class Section:
    where: str
    entries: dict[str, Node] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """Where each key was written."""


@dataclass
class Listing:
    where: str
    items: list[Node] = field(default_factory=list)


Node = Scalar | Section | Listing


def read_file(path: Path, shown: str) -> str:
    """The text of a recipe. Raises RecipeError for what cannot be read as UTF-8 text, with the line where that is so."""
    try:
        if path.is_dir():
            raise RecipeError(f"recipe {shown!r}: is a directory; name a .yaml file in it")
        if path.exists() and not path.is_file():
            raise RecipeError(f"recipe {shown!r}: is not a regular file; name a .yaml file")
        if path.stat().st_size > MAX_BYTES:
            raise RecipeError(f"recipe {shown!r}: is larger than {MAX_BYTES} bytes; this is no recipe")
        data = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"recipe {shown!r}: no such file; give the path of a .yaml file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(
            f"recipe {shown!r}: cannot be read ({reason}); check the path and its permissions"
        ) from error
    coding = _BYTE_ORDER_MARKS.get(data[:2])
    if coding is not None:
        raise RecipeError(f"{shown}:1: is {coding} text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{shown}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise RecipeError(f"{shown}:{line}: holds a zero byte, so it is no text; give a YAML file in UTF-8")
    return text


def parse(text: str, shown: str) -> Node | None:
    """`text` as a tree, None when there is nothing in it. `shown` is its name in errors, which are `shown:line: ...`.

    Raises RecipeError for malformed YAML, a key given twice, tags, and anchors that blow up.
    """
    try:
        events = iter(yaml.parse(text, Loader=_LOADER))
        return _Builder(shown).document(events)
    except yaml.YAMLError as error:
        raise RecipeError(_yaml_problem(error, text, shown)) from error


def parse_value(text: str, shown: str) -> Node:
    """An override's value: a flow of YAML where it begins as one (`{`, `[`, a quote), else plain text as it stands."""
    text = text.strip()
    if not text.startswith(("{", "[", '"', "'")):
        return Scalar(Written(text), shown)
    try:
        node = _Builder(shown, lines=False).document(iter(yaml.parse(text, Loader=_LOADER)))
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "malformed"
        raise RecipeError(
            f"{shown}: not YAML ({problem}); close every bracket and quote, or quote the whole text: 'key=\"...\"'"
        ) from error
    assert node is not None
    return node


def _yaml_problem(error: yaml.YAMLError, text: str, shown: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:  # a character that YAML does not allow
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        return f"{shown}:{line}: not YAML (a control character that YAML does not allow); remove it"
    line = mark.line + 1
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    problem = getattr(error, "problem", None) or "malformed"
    fix = "close every bracket and quote, and indent evenly; text with ':' or '#' in it needs quotes"
    if "\t" in written or "tab" in problem or "\\t" in problem:
        fix = "use blanks where there is a tab"
    return f"{shown}:{line}: not YAML ({problem}, at {shorten(written.strip() or 'the end')!r}); {fix}"


class _Builder:
    """Builds nodes from YAML's events, without recursion deeper than MAX_DEPTH."""

    def __init__(self, shown: str, *, lines: bool = True) -> None:
        self._shown, self._lines = shown, lines
        self._anchors: dict[str, Node] = {}
        self._sizes: dict[str, int] = {}
        self._left = MAX_NODES

    def document(self, events: Iterator[Any]) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise RecipeError(f"{self._at(event)}: a second document begins here; a recipe is one")
            elif isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                continue
            else:
                root = self._node(event, events, 0)
        if isinstance(root, Scalar) and not root.text and isinstance(root.text, Written):
            return None
        return root

    def _at(self, event: Any) -> str:
        return f"{self._shown}:{event.start_mark.line + 1}" if self._lines else self._shown

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        where = self._at(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise RecipeError(
                    f"{where}: *{event.anchor} names no anchor before it; quote the text if it is none"
                )
            self._spend(self._sizes[event.anchor], where)
            return self._anchors[event.anchor]
        before = self._left
        self._spend(1, where)
        if depth > MAX_DEPTH:
            raise RecipeError(f"{where}: nested deeper than {MAX_DEPTH}; no recipe is")
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in ("!", "tag:yaml.org,2002:str"):
            raise RecipeError(f"{where}: the tag {tag!r} is not for recipes; leave it out")
        if isinstance(event, yaml.ScalarEvent):
            quoted = event.style in ("'", '"', "|", ">") or tag is not None
            node: Node = Scalar(str(event.value) if quoted else Written(event.value), where)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Listing(where)
            for inner in events:
                if isinstance(inner, yaml.SequenceEndEvent):
                    break
                node.items.append(self._node(inner, events, depth + 1))
        else:
            node = self._section(where, events, depth)
        if getattr(event, "anchor", None) is not None:
            self._anchors[event.anchor] = node
            self._sizes[event.anchor] = before - self._left
        return node

    def _section(self, where: str, events: Iterator[Any], depth: int) -> Section:
        section, merged = Section(where), []
        for inner in events:
            if isinstance(inner, yaml.MappingEndEvent):
                break
            key = self._node(inner, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if not isinstance(key, Scalar):
                raise RecipeError(f"{self._at(inner)}: a key is text, not a list or a section; quote it")
            if key.text == "<<" and isinstance(key.text, Written):
                merged += value.items if isinstance(value, Listing) else [value]
                continue
            if key.text in section.entries:
                raise RecipeError(
                    f"{key.where}: {shorten(key.text)!r} is given twice, first at {section.places[key.text]}; leave one out"
                )
            section.entries[str(key.text)] = value
            section.places[str(key.text)] = key.where
        for base in merged:
            if not isinstance(base, Section):
                raise RecipeError(f"{where}: '<<' takes a section of keys, as in '<<: *anchor'")
            for name, value in base.entries.items():
                if name not in section.entries:
                    section.entries[name], section.places[name] = value, base.places[name]
        return section

    def _spend(self, nodes: int, where: str) -> None:
        self._left -= nodes
        if self._left < 0:
            raise RecipeError(
                f"{where}: more than {MAX_NODES} entries once its anchors are written out; no recipe has"
            )


def shorten(text: str, length: int = 80) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def dump(node: Node) -> str:
    """YAML that `parse` reads as the same tree."""
    return yaml.serialize(_yaml_node(node), Dumper=yaml.SafeDumper, allow_unicode=True, width=1_000_000)


_RESOLVER = yaml.SafeLoader("")
_TEXT = "tag:yaml.org,2002:str"


def _yaml_node(node: Node) -> yaml.Node:
    if isinstance(node, Section):
        entries = [(_yaml_scalar(name), _yaml_node(value)) for name, value in node.entries.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", entries, flow_style=False)
    if isinstance(node, Listing):
        return yaml.SequenceNode(
            "tag:yaml.org,2002:seq", [_yaml_node(item) for item in node.items], flow_style=True
        )
    return _yaml_scalar(node.text)


def _yaml_scalar(text: str) -> yaml.ScalarNode:
    if isinstance(text, Written) and not re.search(r"[\n]", text):
        return yaml.ScalarNode(_RESOLVER.resolve(yaml.ScalarNode, str(text), (True, False)), str(text))
    return yaml.ScalarNode(_TEXT, str(text), style='"')
