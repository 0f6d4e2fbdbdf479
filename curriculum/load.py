"""YAML plus dotted overrides -> `Recipe`.

OmegaConf does what it is good at (YAML, interpolation, dotlists); the dataclasses of `curriculum.schema` say what is
allowed. `build` is strict: an unknown key is an error that names the nearest known one, and a value of the wrong type
names its key, the value and the type. Overrides may leave out `stages.`: `stage2.optimizer.lr=1e-3`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from curriculum.errors import RecipeError, nearest
from curriculum.fields import yaml_name
from curriculum.model_spec import ModelSpec
from curriculum.schema import Recipe
from curriculum.validate import validate

T = TypeVar("T")


def bundled_recipes() -> list[str]:
    """Names of the recipes that ship with the package."""
    folder = resources.files("curriculum") / "recipes"
    return sorted(entry.name[: -len(".yaml")] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


MAX_EXTENDS = 8
"""A chain of `extends` longer than this is a circle."""


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe `name_or_path` (a bundled name, or a path to a YAML file) with `overrides` applied and validated.

    Raises RecipeError: unknown recipe, malformed YAML, unknown key, malformed override, or values that cannot run.
    """
    config = _read(name_or_path)
    stages = tuple(config["stages"]) if "stages" in config and OmegaConf.is_dict(config.get("stages")) else ()
    for override in overrides:
        key, separator, _ = override.partition("=")
        if not separator or not key.strip():
            raise RecipeError(
                f"override {override!r}: not of the form key=value; for example stage2.optimizer.lr=0.002"
            )
        if key.split(".")[0] in stages:
            override = f"stages.{override}"
        try:
            config = OmegaConf.merge(config, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, ValueError) as error:
            raise RecipeError(f"override {override!r}: {_first_line(error)}") from error
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise RecipeError(f"recipe {name_or_path!r}: {_first_line(error)}") from error
    assert isinstance(values, dict)
    recipe = build(Recipe, _expand_model_preset({str(key): value for key, value in values.items()}), "")
    validate(recipe)
    return recipe


def merged_yaml(name_or_path: str) -> str:
    """The recipe as one YAML text that extends nothing, for a machine that has not the other files."""
    return OmegaConf.to_yaml(_read(name_or_path))


def build(cls: type[T], value: Any, key: str) -> T:
    """A frozen dataclass from nested plain values, strictly. `key` is the dotted path for error messages."""
    if not isinstance(value, Mapping):
        raise RecipeError(
            f"{key or 'recipe'}: {value!r} is not a section of keys; write one `name: value` a line"
        )
    fields = {yaml_name(field.name): field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _type_hints(cls)
    arguments: dict[str, Any] = {}
    for name, item in value.items():
        path = f"{key}.{name}" if key else str(name)
        if name not in fields:
            raise RecipeError(f"{path}: unknown key (value {item!r}); {nearest(str(name), fields)}")
        field = fields[name]
        arguments[field.name] = _convert(hints[field.name], item, path)
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
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parameters:
            return None
        kinds = [p for p in parameters if p is not type(None)]
        lists = [p for p in kinds if typing.get_origin(p) is tuple]
        return _convert(lists[0] if lists and isinstance(value, (list, tuple)) else kinds[0], value, key)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, key)
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else None
        if items is None:
            raise RecipeError(f"{key}: {value!r} is not a list; write [a, b]")
        kinds = [parameters[0]] * len(items) if parameters[-1] is Ellipsis else list(parameters)
        if len(kinds) != len(items):
            raise RecipeError(f"{key}: {value!r} has {len(items)} entries, needs {len(kinds)}")
        return tuple(
            _convert(kind, item, f"{key}[{i}]")
            for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise RecipeError(f"{key}: {value!r} is not a section of keys; write one `name: value` a line")
        return {str(k): _convert(parameters[1], v, f"{key}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise RecipeError(f"{key}: {value!r} is not {_type_name(hint)}; give {_type_name(hint)}")


def _read(name_or_path: str, depth: int = 0) -> Any:
    """The YAML as an OmegaConf tree, over everything it `extends` (a name or a list of names, later ones win)."""
    if depth > MAX_EXTENDS:
        raise RecipeError(f"recipe {name_or_path!r}: `extends` goes in a circle; leave one of the links out")
    text = _text(name_or_path, depth)
    try:
        config = OmegaConf.create(text)
    except Exception as error:
        raise RecipeError(f"recipe {name_or_path!r}: not YAML ({_first_line(error)})") from error
    if not isinstance(config, DictConfig):
        raise RecipeError(f"recipe {name_or_path!r}: holds no sections; see curriculum/recipes/demo.yaml")
    bases = config.get("extends", [])
    if "extends" in config:
        del config["extends"]
    folder = Path(name_or_path).parent if _is_path(name_or_path) else None
    merged = OmegaConf.create({})
    for base in [bases] if isinstance(bases, str) else bases:
        beside = str(folder / base) if folder is not None and _is_path(base) else base
        merged = OmegaConf.merge(merged, _read(beside, depth + 1))
    return OmegaConf.merge(merged, config)


def _text(name_or_path: str, depth: int) -> str:
    folder = resources.files("curriculum") / "recipes"
    if _is_path(name_or_path):
        path = Path(name_or_path)
        if not path.is_file():
            raise RecipeError(
                f"recipe {name_or_path!r}: no such file; bundled recipes: {', '.join(bundled_recipes())}"
            )
        return path.read_text()
    bundled = folder / f"{name_or_path}.yaml"
    if name_or_path in bundled_recipes() or (
        depth > 0 and name_or_path.startswith("mixes/") and bundled.is_file()
    ):
        return bundled.read_text()
    raise RecipeError(
        f"recipe {name_or_path!r}: unknown; {nearest(name_or_path, bundled_recipes())} (or a .yaml path)"
    )


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _expand_model_preset(values: dict[str, Any]) -> dict[str, Any]:
    """`model.preset: NAME` stands for all fields of that preset; other keys beside it override them."""
    model = values.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return values
    model = dict(model)
    name = model.pop("preset")
    try:
        preset = plain(ModelSpec.preset(name))
    except (KeyError, ValueError) as error:
        raise RecipeError(f"model.preset: {name!r} is unknown ({_first_line(error)})") from error
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


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _type_name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}.get(
        hint, str(hint)
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
