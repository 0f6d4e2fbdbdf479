"""Imports go one way: curriculum <- pipeline <- jobs and ncp_model <- jobs; and inside each of them from floor to floor."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
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


FLOORS: dict[str, tuple[set[str], ...]] = {
    "jobs": (
        {"assets", "exit_codes", "graph"},
        {"runs", "tokenizer_source"},
        {"cluster"},
        {"training"},
        {"evaluation"},
        {"plan"},
        {"analysis"},
        {"show"},
        {"steps"},
        {"launch"},
        {"doctor", "evaluate", "export", "generate"},
        {"boundary", "commands"},
        {"cli"},
    ),
    "pipeline": (
        {"answers", "group_rights", "quantities", "records", "redaction"},
        {"patient_s3", "places"},
        {"storage"},
        {"claim"},
        {"dag", "data"},
    ),
    "ncp_model": (
        {"flops", "hf_fields", "hf_names", "init", "layers", "mixing", "muon", "quantizer"},
        {"grid", "hf_config", "memory", "optim"},
        {"hf_headers", "losses", "residual"},
        {"output", "towers"},
        {"metrics", "model"},
        {"hf", "parallel", "session"},
        {"attention_logits", "generate"},
    ),
}
"""Inside a package, lowest first: a module or folder imports from floors below its own, and from itself."""
HEAVY = ("torch", "ray", "datatrove", "datasets", "wandb", "pyarrow", "tokenizers", "safetensors", "s3fs")
"""What may be kept from loading by an import inside a function, which says so: `# brings torch`."""


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in MAY_IMPORT_OURS for path in _modules(package)}


def _targets(node: ast.ImportFrom) -> set[str]:
    """The modules of ours that a `from` import reads."""
    assert node.module is not None
    named = {f"{node.module}.{alias.name}" for alias in node.names}
    return (named & MODULES.keys()) | ({node.module} if not named <= MODULES.keys() else set())


def _ours(nodes: Iterable[ast.AST]) -> Iterator[ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in MAY_IMPORT_OURS:
            yield node


@cache
def _brings(module: str) -> frozenset[str]:
    """Heavy packages that importing a module loads."""
    found, seen, left = set[str](), set[str](), [module]
    while left:
        name = left.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        left += [name.rpartition(".")[0]]  # its package comes first
        if name == "ncp_model.model":
            found.add("torch")
        for node in ast.parse(MODULES[name].read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names} & set(HEAVY)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module.split(".")[0]} & set(HEAVY)
                left += [target for one in _ours([node]) for target in _targets(one)]
    return frozenset(found)


def _imports(path: Path) -> set[str]:
    """Top-level names of everything a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", FLOORS)
def test_inside_a_package_no_import_runs_up(package: str) -> None:
    floor = {unit: number for number, units in enumerate(FLOORS[package]) for unit in units}
    for name, path in MODULES.items():
        if not name.startswith(f"{package}."):
            continue
        unit = name.split(".")[1]
        assert unit in floor, f"{name}: on no floor; give it one in {Path(__file__).name}"
        for node in _ours(ast.walk(ast.parse(path.read_text()))):
            for target in _targets(node):
                other = target.split(".")[1:2]
                if target.split(".")[0] == package and other and other[0] != unit:
                    assert floor[other[0]] < floor[unit], f"{name} imports {target}, which is no lower"


@pytest.mark.parametrize("package", MAY_IMPORT_OURS)
def test_no_imports_go_round_in_a_circle(package: str) -> None:
    arrows = {
        name: {target for node in _ours(ast.walk(ast.parse(path.read_text()))) for target in _targets(node)}
        for name, path in MODULES.items()
        if name.split(".")[0] == package
    }
    while leaves := {name for name, targets in arrows.items() if not targets & arrows.keys() - {name}}:
        arrows = {name: targets for name, targets in arrows.items() if name not in leaves}
    assert not arrows, f"in a circle, or above one: {sorted(arrows)}"


@pytest.mark.parametrize("package", MAY_IMPORT_OURS)
def test_an_import_inside_a_function_keeps_something_heavy_from_loading_and_says_what(package: str) -> None:
    for path in _modules(package):
        text = path.read_text()
        lines = text.splitlines()
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        for node in {id(one): one for function in functions for one in _ours(ast.walk(function))}.values():
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            said = re.search(r"# brings (\w+)", " ".join(lines[node.lineno - 1 : node.end_lineno]))
            assert said, f"{where}: belongs at the top, or says what it brings"
            brought = set[str]().union(*(_brings(target) for target in _targets(node)))
            brought |= {"torch"} if node.module == "ncp_model" else set()
            assert said[1] in brought, f"{where}: brings {sorted(brought) or 'nothing heavy'}"


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
