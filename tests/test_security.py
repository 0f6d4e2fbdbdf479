"""Nothing that storage or a recipe says is ever executed: no eval, no exec, no pickle but the allow-listed one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.load import load_recipe
from jobs.runs.record import read_run
from pipeline.storage import Storage, StorageError

ROOT = Path(__file__).parent.parent
PACKAGES = ("curriculum", "pipeline", "ncp_model", "jobs")
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("os", "system"), ("torch", "load"), ("yaml", "load"), ("marshal", "loads")}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
ALLOWED = {
    ("jobs/training/checkpoint.py", "pickle"),  # an Unpickler with a list of allowed classes
}


def _uses(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                if (module, name) in FORBIDDEN_ATTRIBUTES:
                    found.add(f"{module}.{name}")
            case ast.Import(names=names):
                found |= {alias.name for alias in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=str(module)) if module in FORBIDDEN_MODULES:
                found.add(module)
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                found.add("shell=True")
            case _:
                pass
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_executes_data(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        name = str(path.relative_to(ROOT))
        assert {use for use in _uses(path) if (name, use) not in ALLOWED} == set(), name


def test_what_is_allowed_is_still_there() -> None:
    assert {(name, use) for name, _ in ALLOWED for use in _uses(ROOT / name)} == ALLOWED


@pytest.mark.parametrize("name", ["../x", "x/../../y", "/etc", "..", ".", "a/b", "x\0y", ""])
def test_names_that_would_leave_their_folder_are_refused(tmp_path: Path, name: str) -> None:
    storage = Storage(str(tmp_path))
    with pytest.raises(RecipeError, match="is not a name"):
        read_run(storage, name)
    if ".." in name or name.startswith("/") or "\0" in name:
        with pytest.raises(StorageError, match="leaves the storage root"):
            storage.write_bytes(f"{name}/data" if name != "/etc" else name, b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "section", ["sources: {NAME: {builtin: stdlib-prose}}", "stages: {NAME: {extra: 1}}"]
)
@pytest.mark.parametrize("name", ["../../up", "/etc", "a/b", ".hidden"])
def test_sources_and_stages_of_such_names_are_refused(tmp_path: Path, section: str, name: str) -> None:
    recipe = tmp_path / "wicked.yaml"
    stage = "{mixture: {stdlib-code: 1}, tokens: 4096, optimizer: {lr: 1}}"
    recipe.write_text("extends: demo\n" + section.replace("NAME", name).replace("{extra: 1}", stage) + "\n")
    with pytest.raises(RecipeError, match="is not a name"):
        load_recipe(str(recipe))


def test_a_location_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(RecipeError, match=r"runtime\.locations\.stdlib-code: the URL carries") as error:
        load_recipe("demo", ["runtime.locations.stdlib-code=s3://AKIA:planted@bucket/x"])
    assert "planted" not in str(error.value)
