"""`${section.key}` and `${oc.env:NAME}` in a recipe, in OmegaConf's spelling, resolved once and in time linear in the result.

A value that is one reference and nothing else is the thing referred to, a section too; a reference inside text must be to
text. An environment variable is read where the command is given, never again on another machine. A variable that holds a
credential is refused (`curriculum.secrets`): the recipe is kept in the run's record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from curriculum.errors import RecipeError
from curriculum.layers import look_up
from curriculum.recipe_text import MAX_NODES, Listing, Node, Scalar, Section, Written
from curriculum.secrets import secret_variable

_REFERENCE = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_OPEN = re.compile(r"(?<!\\)\$\{")
_ENVIRONMENT = re.compile(r"oc\.env:\s*([^,\s]+)\s*(?:,(.*))?", re.DOTALL)
MAX_TEXT = 1024 * 1024
NOTIFY_URL = "runtime.notify.url"


def settle_environment(text: str, where: str, key: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with every `${oc.env:NAME}` (or `${oc.env:NAME,default}`) replaced. Raises RecipeError: unset, or a secret."""

    def value(found: re.Match[str]) -> str:
        asked = _ENVIRONMENT.fullmatch(found[1].strip())
        if asked is None:
            return found[0]
        name, default = asked[1], asked[2]
        if secret_variable(name, environment):
            raise RecipeError(
                f"{where}: {key}: ${{oc.env:{name}}} is a credential, which would be kept in the run's record; leave it out: "
                "what needs it reads the environment itself"
            )
        if name in environment:
            return environment[name]
        if default is None:
            raise RecipeError(
                f"{where}: {key}: the environment variable {name} is not set; set it, or write ${{oc.env:{name},default}}"
            )
        return default.strip()

    settled = _REFERENCE.sub(value, text)
    whole = _REFERENCE.fullmatch(text.strip()) is not None
    plain = isinstance(text, Written) or whole  # quotes around a whole reference are YAML's, not the value's
    return Written(settled) if plain else settled


def named_variable(text: str) -> str | None:
    """NAME when `text` is `${oc.env:NAME}` and nothing else."""
    found = _REFERENCE.fullmatch(text.strip())
    asked = _ENVIRONMENT.fullmatch(found[1].strip()) if found else None
    return asked[1] if asked is not None and asked[2] is None else None


def resolve(root: Section) -> Section:
    """The tree without references. Raises RecipeError naming the place of one that leads nowhere or in a circle."""
    resolved = _Resolver(root).node(root, "", ())
    assert isinstance(resolved, Section)
    return resolved


class _Resolver:
    def __init__(self, root: Section) -> None:
        self._root = root
        self._known: dict[str, tuple[Node, int]] = {}
        self._left = MAX_NODES

    def node(self, node: Node, key: str, asked: tuple[str, ...]) -> Node:
        self._left -= 1
        if self._left < 0:
            raise RecipeError(
                f"{node.where}: {key}: more than {MAX_NODES} entries once its references are followed"
            )
        if isinstance(node, Scalar):
            return self._scalar(node, key, asked)
        if isinstance(node, Listing):
            return Listing(
                node.where, [self.node(item, f"{key}[{i}]", asked) for i, item in enumerate(node.items)]
            )
        return Section(
            node.where,
            {
                name: self.node(item, f"{key}.{name}" if key else name, asked)
                for name, item in node.entries.items()
            },
            node.places,
        )

    def _scalar(self, node: Scalar, key: str, asked: tuple[str, ...]) -> Node:
        if "${" not in node.text:
            return node
        whole = _REFERENCE.fullmatch(node.text.strip())
        if whole is not None:
            target = self._target(node, whole[1], key, asked)
            return Scalar(target.text, node.where) if isinstance(target, Scalar) else target
        text = _REFERENCE.sub(lambda found: self._text(node, found[1], key, asked), node.text)
        if _OPEN.search(node.text) and len(_OPEN.findall(node.text)) != len(_REFERENCE.findall(node.text)):
            raise RecipeError(
                f"{node.where}: {key}: {node.text[:80]!r} has a '${{' that is not closed, or one inside another; "
                "write ${section.key}, or '\\${' for the characters themselves"
            )
        if len(text) > MAX_TEXT:
            raise RecipeError(
                f"{node.where}: {key}: longer than {MAX_TEXT} characters once its references are followed"
            )
        text = text.replace("\\${", "${")
        return Scalar(Written(text) if isinstance(node.text, Written) else text, node.where)

    def _text(self, node: Scalar, path: str, key: str, asked: tuple[str, ...]) -> str:
        target = self._target(node, path, key, asked)
        if not isinstance(target, Scalar):
            raise RecipeError(
                f"{node.where}: {key}: ${{{path}}} is no text that could stand inside other text"
            )
        return target.text

    def _target(self, node: Scalar, path: str, key: str, asked: tuple[str, ...]) -> Node:
        path = path.strip()
        if ":" in path or not path:
            raise RecipeError(
                f"{node.where}: {key}: ${{{path[:60]}}} is unknown; write ${{section.key}} or ${{oc.env:NAME}}"
            )
        if path.startswith("."):
            path = _absolute(path, key)
        if path in asked or path == key or key.startswith(f"{path}.") or len(asked) > 64:
            raise RecipeError(f"{node.where}: {key}: ${{{path}}} leads back to itself; write the value")
        target = look_up(self._root, path)
        if target is None:
            raise RecipeError(
                f"{node.where}: {key}: ${{{path}}} refers to nothing in the recipe; check its spelling"
            )
        known = self._known.get(path)
        if known is None:
            before = self._left
            resolved = self.node(target, path, (*asked, path))
            self._known[path] = known = (resolved, before - self._left)
        else:
            self._left -= known[1]
        return known[0]


def _absolute(path: str, key: str) -> str:
    """`.x` is beside the key, `..x` beside the section that holds it."""
    dots = len(path) - len(path.lstrip("."))
    return ".".join([*key.split(".")[:-dots], path[dots:]])
