"""Laying one recipe over another, and single entries over both.

Structures (`optimizer`, `runtime`, a stage) merge key by key. A *mapping of names* (`mixture`, `sources`, `stages`, `mixes`,
`runtime.locations`, `generations`, `clean.settings`) that is given whole replaces the one below it: half of somebody else's
mixture is no mixture. It edits instead where it cannot be whole: when an entry is `null`, which removes it, or when a stage
lacks what every stage needs (its mixture, tokens or learning rate). A dotted key (`stages.stage1.tokens: 1000000`) always
edits one entry. Recipes in one list of `extends` are united; of two mixtures under one name the later one replaces.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from curriculum.errors import RecipeError, nearest
from curriculum.fields import yaml_name
from curriculum.model_spec import ModelSpec
from curriculum.recipe_text import Listing, Node, Scalar, Section
from curriculum.scalars import is_null

_KEY_PART = re.compile(r"([^.\[\]]+)|\[([^\[\]]*)\]")
WHOLE_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")


def overlay(base: Node | None, over: Node, hint: Any, key: str = "", *, siblings: bool = False) -> Node:
    """`over` laid over `base`, where the schema has a value of type `hint`. Neither is changed.

    `siblings`: both are extended by one file, so that their names are united. Raises RecipeError for the removal of an entry
    that is not there.
    """
    if not isinstance(over, Section):
        return over
    below = base if isinstance(base, Section) else Section(over.where)
    spec = structure(hint)
    if spec is not None:
        if any(_is_preset(name, spec) for name in over.entries):
            below = Section(over.where)
        result = Section(over.where, dict(below.entries), {**below.places, **over.places})
        for name, node in over.entries.items():
            inner = field_hints(spec).get(name)
            result.entries[name] = overlay(
                below.entries.get(name), node, inner, _join(key, name), siblings=siblings
            )
        return result
    value_hint = names_hint(hint)
    if value_hint is None:
        return over
    united = siblings and value_hint is not float
    edits = united or any(_is_edit(node, value_hint) for node in over.entries.values())
    kept = below if edits else Section(over.where)
    result = Section(over.where, dict(kept.entries), {**kept.places, **over.places})
    for name, node in over.entries.items():
        path = _join(key, name)
        if value_hint is not Any and _removes(node):
            if name not in below.entries:
                raise RecipeError(
                    f"{over.places.get(name, over.where)}: {path}: null removes an entry, and there is none of that name; "
                    f"{nearest(name, below.entries) if below.entries else 'write {} for an empty one'}"
                )
            result.entries.pop(name, None)
        else:
            result.entries[name] = overlay(kept.entries.get(name), node, value_hint, path, siblings=siblings)
    return result


def set_entry(root: Section, key: str, value: Node, hint: Any, where: str) -> Section:
    """`root` with the one entry that a dotted key names laid over what is there. Raises RecipeError."""
    parts = _parts(key, where)
    return typing.cast(Section, _set(root, root, parts, value, hint, where, ""))


def _set(
    root: Section, node: Node | None, parts: Sequence[str], value: Node, hint: Any, where: str, key: str
) -> Node:
    if not parts:
        return overlay(node, value, hint, key)
    if isinstance(node, Listing):
        raise RecipeError(f"{where}: {key} is a list, which is given whole; write {key}=[a, b]")
    if isinstance(node, Scalar):
        node = _referred(root, node)
    section = node if isinstance(node, Section) else Section(where)
    values = names_hint(hint)
    if values is not None:
        name, rest = _longest_name(section, parts, values)
        inner = values
    else:
        spec = structure(hint)
        name, rest = parts[0], parts[1:]
        inner = field_hints(spec).get(name) if spec is not None else None
        if _is_preset(name, spec):
            section = Section(where)
    path = _join(key, name)
    result = Section(section.where, dict(section.entries), {**section.places, name: where})
    if values is not None and values is not Any and not rest and _removes(value):
        if name not in section.entries:
            raise RecipeError(f"{where}: {path}: nothing to remove; {nearest(name, section.entries)}")
        del result.entries[name]
        return result
    result.entries[name] = _set(root, section.entries.get(name), rest, value, inner, where, path)
    return result


def _parts(key: str, where: str) -> list[str]:
    parts, position = [], 0
    for found in _KEY_PART.finditer(key):
        gap = key[position : found.start()]
        if gap != ("." if parts and found[1] is not None else "") or (found[2] is not None and not parts):
            break
        parts.append((found[1] if found[1] is not None else found[2].strip("'\"")).strip())
        position = found.end()
    if position != len(key) or not all(parts):
        raise RecipeError(
            f"{where}: {key!r} is no key; write names with dots between them, as in stage1.optimizer.lr"
        )
    return parts


def _longest_name(section: Section, parts: Sequence[str], values: Any) -> tuple[str, Sequence[str]]:
    """The entry that a key names, whose name may itself have dots in it."""
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in section.entries:
            return name, parts[length:]
    if values in (float, int, str):  # nothing lies below such an entry
        return ".".join(parts), ()
    return parts[0], parts[1:]


def _referred(root: Section, scalar: Scalar) -> Node | None:
    """What `${section.key}` refers to, so that one entry of it can be edited; None for any other text."""
    found = WHOLE_REFERENCE.fullmatch(scalar.text)
    return look_up(root, found[1]) if found else None


def look_up(root: Node, path: str) -> Node | None:
    """The node that a dotted path names, where names may have dots in them; None where there is none."""
    if not isinstance(root, Section):
        return None
    if path in root.entries:
        return root.entries[path]
    for name, node in root.entries.items():
        if path.startswith(f"{name}."):
            found = look_up(node, path[len(name) + 1 :])
            if found is not None:
                return found
    return None


def _is_preset(name: str, spec: Any) -> bool:
    """Whether the key names a preset of a structure, which stands for every field of it."""
    return name == "preset" and spec is ModelSpec


def _removes(node: Node) -> bool:
    return isinstance(node, Scalar) and is_null(node.text)


def _is_edit(node: Node, hint: Any) -> bool:
    """Whether an entry of a mapping of names only makes sense over another one."""
    if hint is Any:
        return False
    return _removes(node) or (isinstance(node, Section) and _lacks_something(node, hint))


def _lacks_something(section: Section, hint: Any) -> bool:
    spec = structure(hint)
    if spec is None:
        return False
    hints = field_hints(spec)
    for one in dataclasses.fields(spec):
        name = yaml_name(one.name)
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        inner = section.entries.get(name)
        if required and inner is None and not any(given.startswith(f"{name}.") for given in section.entries):
            return True
        if required and isinstance(inner, Section) and _lacks_something(inner, hints[name]):
            return True
    return False


def structure(hint: Any) -> Any:
    """The dataclass that a type hint asks for, None for anything else."""
    for kind in _kinds(hint):
        if dataclasses.is_dataclass(kind):
            return kind
    return None


def names_hint(hint: Any) -> Any:
    """The type of a mapping's values when the hint is a mapping of names, else None."""
    for kind in _kinds(hint):
        origin = typing.get_origin(kind)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return typing.get_args(kind)[1]
    return None


def _kinds(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


@cache
def type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def field_hints(cls: type) -> dict[str, Any]:
    """Types by the names that a recipe uses."""
    return {yaml_name(name): hint for name, hint in type_hints(cls).items()}


def split_dotted(section: Section, hint: Any) -> tuple[Section, list[tuple[str, Node, str]]]:
    """A file's keys without dots, and those with dots (which edit one entry each, after the others) with their places."""
    spec = structure(hint)
    if spec is None:
        return section, []
    plain, edits = Section(section.where, {}, section.places), []
    for name, node in section.entries.items():
        if "." in name and name not in field_hints(spec):
            edits.append((name, node, section.places[name]))
            continue
        plain.entries[name] = node
        if isinstance(node, Section) and structure(field_hints(spec).get(name)) is not None:
            plain.entries[name], inner = split_dotted(node, field_hints(spec)[name])
            edits += [(f"{name}.{key}", value, where) for key, value, where in inner]
    return plain, edits


def with_stage(key: str, stages: Sequence[str], known: Sequence[str]) -> str:
    """A key that begins with a stage's name, as the whole key: `stages.` may be left out."""
    for name in stages:
        if name not in known and (key == name or key.startswith((f"{name}.", f"{name}["))):
            return f"stages.{key}"
    return key


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
