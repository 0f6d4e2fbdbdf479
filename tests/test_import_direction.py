"""Imports go one way: curriculum <- pipeline <- jobs and ncp_model <- jobs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("curriculum", "pipeline", "ncp_model", "jobs", "tests")
MAY_IMPORT_OURS = {
    "curriculum": {"curriculum"},
    "pipeline": {"curriculum", "pipeline"},
    "ncp_model": {"curriculum", "ncp_model"},
    "jobs": {"curriculum", "pipeline", "ncp_model", "jobs"},
}
MAY_IMPORT_OTHERS = {"curriculum": {"yaml"}, "ncp_model": {"torch", "numpy", "safetensors"}}
RESTRICTED = {
    "ray": ("pipeline/data/staging.py", "pipeline/data/cleaning.py", "jobs/"),
    "wandb": ("jobs/",),
    "torch": ("pipeline/data/loader.py", "ncp_model/", "jobs/"),
}


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """Top-level names of everything a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT_OURS)
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    for path in _modules(package):
        foreign = (_imports(path) & set(OURS)) - MAY_IMPORT_OURS[package]
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


@pytest.mark.parametrize("package", MAY_IMPORT_OTHERS)
def test_pure_packages_import_few_others(package: str) -> None:
    for path in _modules(package):
        others = _imports(path) - set(sys.stdlib_module_names) - set(OURS) - MAY_IMPORT_OTHERS[package]
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


@pytest.mark.parametrize("library", RESTRICTED)
def test_heavy_libraries_stay_where_they_belong(library: str) -> None:
    for package in MAY_IMPORT_OURS:
        for path in _modules(package):
            name = str(path.relative_to(ROOT))
            if library in _imports(path):
                assert name.startswith(RESTRICTED[library]), f"{name} imports {library}"


def test_the_driver_imports_no_torch() -> None:
    """The runner is a light driver: planning and running a DAG must not load torch into it."""
    import subprocess

    code = "import sys, jobs.cli, jobs.steps; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_package_is_listed_for_installation() -> None:
    """Names such as `jobs` are generic, so the package list is explicit; this keeps it complete."""
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in MAY_IMPORT_OURS
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert listed == found
