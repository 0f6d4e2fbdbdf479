"""YAML plus dotted overrides -> `Recipe`.

A recipe is read as a tree of text that knows its places (`curriculum.recipe_text`), laid over what it extends
(`curriculum.layers`), its references resolved (`curriculum.interpolation`), and then built: the dataclasses of
`curriculum.schema` say what is allowed. `build` is strict: an unknown key is an error that names the nearest known one, a value
of the wrong type or beyond its bounds names its key, the value and the fix. Overrides may leave out `stages.`:
`stage2.optimizer.lr=1e-3`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from curriculum.errors import RecipeError, nearest
from curriculum.fields import numbers_of, out_of_bounds, yaml_name
from curriculum.interpolation import NOTIFY_URL, named_variable, resolve, settle_environment
from curriculum.layers import field_hints, overlay, set_entry, split_dotted, type_hints, with_stage
from curriculum.model_spec import ModelSpec
from curriculum.recipe_text import (
    Listing,
    Node,
    Scalar,
    Section,
    Written,
    dump,
    parse,
    parse_value,
    read_file,
    shorten,
)
from curriculum.scalars import decimal_number, is_null, shown, switch, untyped, whole_number
from curriculum.schema import Recipe
from curriculum.secrets import credential_in, secret_address, secrets_in
from curriculum.validate import validate

T = TypeVar("T")


def bundled_recipes() -> list[str]:
    """Names of the recipes that ship with the package."""
    folder = resources.files("curriculum") / "recipes"
    return sorted(entry.name[: -len(".yaml")] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


MAX_EXTENDS = 8
"""A chain of `extends` longer than this is a circle."""
MAX_FILES = 100
"""Files that one recipe may be put together from."""


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe `name_or_path` (a bundled name, or a path to a YAML file) with `overrides` applied and validated.

    Raises RecipeError, one line with file, line, key and fix: unknown recipe, malformed YAML, unknown key, malformed override,
    a credential, or values that cannot run.
    """
    try:
        tree = _overridden(_read(name_or_path), overrides)
        tree = resolve(_settled(tree, notify=True))
        _refuse_credentials(tree)
        try:
            recipe = build(Recipe, _expand_model_preset(_values(tree)), "")
            validate(recipe)
        except RecipeError as error:
            place = _place(tree, str(error))
            raise RecipeError(f"{place}: {error}" if place else str(error)) from error
    except RecipeError as error:
        raise RecipeError(_one_line(str(error))) from error
    return recipe


def merged_yaml(name_or_path: str) -> str:
    """The recipe as one YAML text that extends nothing and asks no environment, for a machine that has neither.

    Only a webhook's address stays the name of its variable.
    """
    return dump(_settled(_read(name_or_path), notify=False))


def settled_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides as another machine is to be given them: with the environment of this one."""
    return [
        override
        if override.split("=")[0].strip() == NOTIFY_URL
        else settle_environment(override, "override", override.split("=")[0])
        for override in overrides
    ]


def build(cls: type[T], value: Any, key: str) -> T:
    """A frozen dataclass from nested plain values, strictly. `key` is the dotted path for error messages."""
    if not isinstance(value, Mapping):
        raise RecipeError(
            f"{key or 'recipe'}: {shown(value)} is not a section of keys; write one `name: value` a line"
        )
    fields = {yaml_name(field.name): field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = type_hints(cls)
    arguments: dict[str, Any] = {}
    for name, item in value.items():
        path = f"{key}.{name}" if key else str(name)
        if name not in fields:
            raise RecipeError(
                f"{shorten(path, 200)}: unknown key (value {shown(item)}); {nearest(str(name), fields)}"
            )
        field = fields[name]
        arguments[field.name] = converted = _convert(hints[field.name], item, path)
        for where, number in numbers_of(converted, path):
            problem = out_of_bounds(field, number)
            if problem is not None:
                raise RecipeError(f"{where}: {number!r} {problem}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in arguments:
            raise RecipeError(f"{f'{key}.{name}' if key else name}: missing; give it a value")
    try:
        return cls(**arguments)
    except ValueError as error:
        known = not key or str(error).startswith(f"{key}.")
        raise RecipeError(str(error) if known else f"{key}: {error}") from error


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _untyped(value, key)
    if origin in (typing.Union, types.UnionType):
        if is_null(value) and type(None) in parameters:
            return None
        kinds = [p for p in parameters if p is not type(None)]
        lists = [p for p in kinds if typing.get_origin(p) is tuple]
        return _convert(lists[0] if lists and isinstance(value, (list, tuple)) else kinds[0], value, key)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, key)
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else None
        if items is None:
            raise RecipeError(f"{key}: {shown(value)} is not a list; write [a, b]")
        kinds = [parameters[0]] * len(items) if parameters[-1] is Ellipsis else list(parameters)
        if len(kinds) != len(items):
            raise RecipeError(f"{key}: {shown(value)} has {len(items)} entries, needs {len(kinds)}")
        return tuple(
            _convert(kind, item, f"{key}[{i}]")
            for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise RecipeError(
                f"{key}: {shown(value)} is not a section of keys; write one `name: value` a line"
            )
        return {str(k): _convert(parameters[1], v, f"{key}.{k}") for k, v in value.items()}
    found = _scalar(hint, value)
    if found is None:
        raise RecipeError(f"{key}: {shown(value)} is not {_type_name(hint)}; give {_type_name(hint)}")
    return found


def _scalar(hint: Any, value: Any) -> Any:
    """`value` as the type wants it, None when it is none of that type."""
    if isinstance(value, Written):
        if is_null(value):
            return None
        readers = {int: whole_number, float: decimal_number, bool: switch, str: str}
        return readers[hint](value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e308 or isinstance(value, float) else None
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, hint) and not (hint is int and isinstance(value, bool)) else None


def _untyped(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _untyped(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_untyped(item, f"{key}[{i}]") for i, item in enumerate(value)]
    try:
        found = untyped(value)
    except ValueError as error:
        raise RecipeError(f"{key}: {error}") from error
    if isinstance(found, float) and not abs(found) < float("inf"):
        raise RecipeError(f"{key}: {found!r} must be a finite number")
    return found


def _read(name_or_path: str, chain: tuple[str, ...] = (), files: list[int] | None = None) -> Section:
    """The recipe as a tree, over everything it `extends` (a name or a list of names, later ones win)."""
    if len(chain) > MAX_EXTENDS:
        raise RecipeError(f"recipe {name_or_path!r}: `extends` goes in a circle; leave one of the links out")
    files = [0] if files is None else files
    files[0] += 1
    if files[0] > MAX_FILES:
        raise RecipeError(
            f"recipe {name_or_path!r}: more than {MAX_FILES} files are extended; leave links out"
        )
    text, shown_as = _text(name_or_path, chain)
    tree = parse(text, shown_as)
    if not isinstance(tree, Section):
        raise RecipeError(f"recipe {name_or_path!r}: holds no sections; see curriculum/recipes/demo.yaml")
    bases = tree.entries.pop("extends", None)
    folder = Path(name_or_path).parent if _is_path(name_or_path) else None
    merged: Section | None = None
    for base in _base_names(bases):
        beside = str(folder / base) if folder is not None and _is_path(base) else base
        try:
            below = _read(beside, (*chain, name_or_path), files)
        except RecipeError as error:
            if not str(error).startswith("recipe ") or bases is None or "goes in a circle" in str(error):
                raise
            raise RecipeError(f"{bases.where}: extends: {error}") from error
        merged = (
            below if merged is None else typing.cast(Section, overlay(merged, below, Recipe, siblings=True))
        )
    plain_keys, edits = split_dotted(tree, Recipe)
    result = typing.cast(Section, overlay(merged, plain_keys, Recipe))
    for key, value, where in edits:
        result = set_entry(result, key, value, Recipe, where)
    return result


def _base_names(bases: Node | None) -> list[str]:
    if bases is None or (isinstance(bases, Scalar) and is_null(bases.text)):
        return []
    items = bases.items if isinstance(bases, Listing) else [bases]
    names = []
    for item in items:
        if not isinstance(item, Scalar):
            raise RecipeError(
                f"{bases.where}: extends: write the name of a recipe, or a list [a, b] of names"
            )
        names.append(str(item.text))
    return names


def _text(name_or_path: str, chain: tuple[str, ...]) -> tuple[str, str]:
    """The recipe's text, and what to call it in errors."""
    folder = resources.files("curriculum") / "recipes"
    if _is_path(name_or_path):
        return read_file(Path(name_or_path), name_or_path), name_or_path
    bundled = folder / f"{name_or_path}.yaml"
    of_a_mix = bool(chain) and name_or_path.startswith("mixes/") and ".." not in name_or_path
    if name_or_path in bundled_recipes() or (of_a_mix and bundled.is_file()):
        return bundled.read_text(encoding="utf-8"), f"{name_or_path}.yaml"
    where = "is a directory; name a .yaml file in it" if Path(name_or_path[:200]).is_dir() else "unknown"
    if where == "unknown":
        where += f"; {nearest(name_or_path, bundled_recipes())} (or a .yaml path)"
    raise RecipeError(f"recipe {shorten(name_or_path, 200)!r}: {where}")


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _overridden(tree: Section, overrides: Sequence[str]) -> Section:
    secrets = secrets_in(os.environ)
    for override in overrides:
        where = f"override {shorten(override)!r}"
        key, separator, text = override.partition("=")
        key = key.strip()
        if key.startswith("~"):
            raise RecipeError(f"{where}: an entry is removed with {key[1:]}=null")
        if not separator or not key:
            raise RecipeError(f"{where}: not of the form key=value; for example stage2.optimizer.lr=0.002")
        kind = credential_in(override, secrets)
        if kind is not None:
            raise _credential(f"override {key}", key, kind)
        stages = tree.entries.get("stages")
        names = list(stages.entries) if isinstance(stages, Section) else []
        key = with_stage(key, names, list(field_hints(Recipe)))
        tree = set_entry(tree, key, parse_value(text, where), Recipe, where)
    return tree


def _settled(tree: Section, *, notify: bool) -> Section:
    """The tree with the environment's values in it. `notify`: a webhook from there becomes the name of its variable."""

    def settled(node: Node, key: str) -> Node:
        if isinstance(node, Section):
            inner = {
                name: settled(item, f"{key}.{name}" if key else name) for name, item in node.entries.items()
            }
            if notify and key == "runtime.notify":
                inner = _with_variable(inner, node)
            return Section(node.where, inner, node.places)
        if isinstance(node, Listing):
            return Listing(node.where, [settled(item, f"{key}[{i}]") for i, item in enumerate(node.items)])
        if "${" not in node.text or (key == NOTIFY_URL and named_variable(node.text) is not None):
            return node
        return Scalar(settle_environment(node.text, node.where, key), node.where)

    return typing.cast(Section, settled(tree, ""))


def _with_variable(entries: dict[str, Node], section: Section) -> dict[str, Node]:
    url = entries.get("url")
    name = named_variable(url.text) if isinstance(url, Scalar) else None
    if name is None:
        return entries
    section.places["url_env"] = section.places.get("url", section.where)
    rest = {key: node for key, node in entries.items() if key not in ("url", "url_env")}
    return {**rest, "url_env": Scalar(name, section.where)}


def _refuse_credentials(tree: Section) -> None:
    secrets = secrets_in(os.environ)
    for key, text, where in _texts(tree, ""):
        kind = credential_in(text, secrets)
        if kind is not None:
            raise _credential(where, key, kind)
        if key == NOTIFY_URL and secret_address(text):
            raise _credential(where, key, "a webhook's address, which is all that it takes to use it")


def _credential(where: str, key: str, kind: str) -> RecipeError:
    fix = "leave it out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, HF_TOKEN, or a profile, where it is used"
    if key.startswith("runtime.notify"):
        fix = "name the environment variable that holds it: runtime.notify.url_env=NCP_NOTIFY_URL"
    return RecipeError(
        f"{where}: {key}: the {'URL' if 'URL' in kind or 'webhook' in kind else 'text'} carries credentials ({kind}), which would be "
        f"kept in the run's record; {fix}"
    )


def _texts(node: Node, key: str) -> Iterator[tuple[str, str, str]]:
    """Every text of the tree, keys too, as (key, text, place)."""
    if isinstance(node, Scalar):
        yield key, node.text, node.where
    elif isinstance(node, Listing):
        for index, item in enumerate(node.items):
            yield from _texts(item, f"{key}[{index}]")
    else:
        for name, item in node.entries.items():
            yield key or "recipe", name, node.places.get(name, node.where)
            yield from _texts(item, f"{key}.{name}" if key else name)


def _values(node: Node) -> Any:
    if isinstance(node, Section):
        return {name: _values(item) for name, item in node.entries.items()}
    if isinstance(node, Listing):
        return [_values(item) for item in node.items]
    return node.text


def _place(tree: Section, message: str) -> str | None:
    """Where the key at the front of a message was written: the place of the longest part of it that the tree has."""
    best: tuple[int, str | None] = (0, None)
    waiting: list[tuple[str, Node]] = [("", tree)]
    while waiting:
        key, node = waiting.pop()
        if isinstance(node, Section):
            inner = [
                (f"{key}.{name}" if key else name, item, node.places.get(name, item.where))
                for name, item in node.entries.items()
            ]
        elif isinstance(node, Listing):
            inner = [(f"{key}[{i}]", item, item.where) for i, item in enumerate(node.items)]
        else:
            continue
        for path, item, where in inner:
            if message.startswith(path) and message[len(path) : len(path) + 1] in (":", ".", "[", " "):
                best = max(best, (len(path), where), key=lambda found: found[0])
                waiting.append((path, item))
    return best[1]


def _expand_model_preset(values: dict[str, Any]) -> dict[str, Any]:
    """`model.preset: NAME` stands for all fields of that preset; other keys beside it override them."""
    model = values.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return values
    model = dict(model)
    name = model.pop("preset")
    try:
        preset = plain(ModelSpec.preset(name))
    except (KeyError, ValueError, TypeError) as error:
        raise RecipeError(f"model.preset: {shown(name)} is unknown ({error})") from error
    return {**values, "model": _merged(preset, model)}


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = (
            _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
        )
    return result


def plain(value: Any) -> Any:
    """A dataclass tree as plain dicts, lists and scalars, under its YAML names. The inverse of `build`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {yaml_name(f.name): plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _type_name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}.get(
        hint, str(hint)
    )


def _one_line(message: str) -> str:
    """Without line breaks, and with what somebody wrote at great length cut short."""
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
    return re.sub(r"\S{300,}", lambda found: shorten(found[0], 200), message)
