"""What a run's record says, read so that it outlives versions.

A record of another version may have keys that this one does not know: they are left out and named. What this version
needs and a record lacks, or says in a way that cannot be used, is a DamagedRecord that names the record; whoever lists
many records marks that one and goes on with the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from curriculum.errors import InputError
from curriculum.fields import yaml_name
from curriculum.load import build
from curriculum.schema import Recipe
from pipeline.records import DamagedRecord

_STEP_KEYS = ("name", "kind", "key")


def checked_record(record: Any, place: str) -> dict[str, Any]:
    """The run record at `place` with the parts that everything relies on, its stages in the order of the curriculum.

    Raises DamagedRecord naming `place` and what is missing.
    """
    if not isinstance(record, dict):
        raise DamagedRecord(f"{place}: not a run's record")
    recipe, steps = record.get("recipe"), record.get("steps")
    if not isinstance(recipe, dict) or not isinstance(recipe.get("recipe"), str):
        raise DamagedRecord(f"{place}: `recipe` is missing or no recipe; damaged, or of another version")
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        raise DamagedRecord(
            f"{place}: `steps` is missing or no list of steps; damaged, or of another version"
        )
    record = {"overrides": [], "pins": {}, "created": None, **record}
    if not isinstance(record["created"], int | float):
        record["created"] = None
    steps = [{"fingerprint": "", "milestone": None, "needs": [], "evaluates": None, **step} for step in steps]
    stages = recipe.get("stages")
    if isinstance(stages, dict):
        recipe = {**recipe, "stages": _in_order(stages, record.get("stages"), steps)}
    return {**record, "recipe": recipe, "steps": steps}


def recorded_recipe(record: Mapping[str, Any]) -> Recipe:
    """The recipe of a run's record, without what this version does not know (`unknown_keys`).

    Raises DamagedRecord when what is left is no recipe of this version.
    """
    with reading(f"recipe of run {record.get('run')!r}"):
        return build(Recipe, _known(Recipe, record["recipe"], "", []), "")


def unknown_keys(record: Mapping[str, Any]) -> list[str]:
    """Dotted keys of the recorded recipe that this version does not know."""
    found: list[str] = []
    _known(Recipe, record["recipe"], "", found)
    return found


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Around code that takes a record apart: what does not fit its shape becomes a DamagedRecord naming `place`."""
    try:
        yield
    except DamagedRecord:
        raise
    except InputError as error:
        raise DamagedRecord(f"{place}: cannot be read by this version ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DamagedRecord(f"{place}: damaged, or of another version ({reason})") from error


def _is_step(step: Any) -> bool:
    return isinstance(step, dict) and all(isinstance(step.get(key), str) for key in _STEP_KEYS)


def _in_order(stages: Mapping[str, Any], listed: Any, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """`stages` as `listed`; records of older versions list none and sorted their keys: there the steps have the order."""
    order = (
        listed if isinstance(listed, list) else [step["name"] for step in steps if step["kind"] == "stage"]
    )
    known = [name for name in order if name in stages]
    return {name: stages[name] for name in dict.fromkeys([*known, *stages])}


def _known(hint: Any, value: Any, key: str, unknown: list[str]) -> Any:
    """`value` without the keys that the dataclasses of `hint` do not have; those are added to `unknown`."""
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for kind in (kind for kind in parameters if kind is not type(None)):
            if (typing.get_origin(kind) is tuple) == isinstance(value, list):
                return _known(kind, value, key, unknown)
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        fields = {yaml_name(field.name): field.name for field in dataclasses.fields(hint)}
        hints, kept = typing.get_type_hints(hint), {}
        for name, item in value.items():
            path = f"{key}.{name}" if key else str(name)
            if name in fields:
                kept[name] = _known(hints[fields[name]], item, path, unknown)
            else:
                unknown.append(path)
        return kept
    if origin is tuple and isinstance(value, list) and parameters[-1:] == (Ellipsis,):
        return [_known(parameters[0], item, f"{key}[{i}]", unknown) for i, item in enumerate(value)]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _known(parameters[1], item, f"{key}.{name}", unknown) for name, item in value.items()}
    return value
