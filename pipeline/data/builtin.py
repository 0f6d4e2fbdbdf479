"""Builtin sources: real text that every Python installation carries.

`stdlib-code` is the standard library's own sources, `stdlib-prose` its help topics and docstrings. They make the
demo and the tests run on real text with no download. The content is their identity, not the machine: another Python
version has another text, hence another pin and other shards.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data import topics
from typing import Any

MIN_DOCSTRING_CHARS = 160
"""Shorter docstrings are one-line labels; they teach little and make tiny documents."""

_NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def stdlib_files() -> list[tuple[str, Path]]:
    """(relative path, path) of the standard library's non-test sources, sorted by relative path.

    `_sysconfigdata*` is left out: it holds the build machine's paths and compiler flags.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not _NOT_LIBRARY.intersection(relative.parts[:-1]) and not relative.name.startswith(
            "_sysconfigdata"
        ):
            files.append((relative.as_posix(), path))
    return sorted(files)


def stdlib_code() -> Iterator[dict[str, Any]]:
    """One document per source file, empty ones included: a real corpus has them too."""
    for name, path in stdlib_files():
        yield {"id": name, "text": _source(path), "source": "stdlib-code"}


def stdlib_prose() -> Iterator[dict[str, Any]]:
    """One document per help topic (`help('LAMBDAS')`), then one per docstring, in file and source order."""
    for name in sorted(topics.topics):
        yield {
            "id": f"pydoc_data.topics:{name}",
            "text": topics.topics[name].strip(),
            "source": "stdlib-prose",
        }
    for name, path in stdlib_files():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old modules; the text is what counts
            module = ast.parse(_source(path))
        for node, qualified in _documented(module, ()):
            text = ast.get_docstring(node, clean=False)
            text = inspect.cleandoc(text).strip() if text else ""
            if len(text) >= MIN_DOCSTRING_CHARS:
                yield {
                    "id": f"{name}:{'.'.join(qualified) or '<module>'}",
                    "text": text,
                    "source": "stdlib-prose",
                }


BUILTIN: Mapping[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "stdlib-code": stdlib_code,
    "stdlib-prose": stdlib_prose,
}


def _source(path: Path) -> str:
    with tokenize.open(path) as file:  # honours a coding line
        return file.read()


def _documented(node: Any, qualified: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Module, classes and functions of a syntax tree, each with its qualified name, in source order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node, qualified
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # no definition lies inside an expression
            continue
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _documented(child, (*qualified, child.name) if named else qualified)
