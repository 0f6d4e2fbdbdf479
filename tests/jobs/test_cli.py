"""The command line as its user meets it: one-line errors with exit code 2, plans, and nothing left half-written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from jobs import cli
from jobs.exit_codes import FAILED
from tests.ncp_process import ROOT, SMALL, ncp


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "demmo"], "recipe 'demmo': unknown; did you mean 'demo'?"),
        (["plan", "demo", "stage2.optimiser.lr=1"], "stages.stage2.optimiser: unknown key"),
        (["run", "demo", "stage2.optimizer.lr"], "not of the form key=value"),
        (["run", "demo", "stage1.tokens=10"], "stages.stage1.tokens: 10 is less than one batch (4096)"),
        (
            ["run", "demo", "stage1.sequence_length=130"],
            "is not divisible by model.concept.chunk_size 4; use 128",
        ),
        (["run", "demo", "stage1.evaluation.suites=[quikc]"], "quikc"),
        (["run", "demo", "--name", "../up"], "--name: '../up' is not a name"),
        (["status", "demo-000000"], "run: 'demo-000000' does not exist"),
        (["report", "demo-000000"], "run: 'demo-000000' does not exist"),
        (["assets", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, output = ncp(tmp_path / "store", *arguments)
    assert code == 2, output
    assert output.startswith("error: ") and message in output and output.count("\n") == 1, output
    assert "Traceback" not in output
    assert _files(tmp_path / "store") == []


def test_a_storage_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a directory")
    code, output = ncp(tmp_path / "store", "run", "demo")
    assert code == 2 and "is a file; choose another --storage" in output and output.count("\n") == 1, output


def test_a_command_that_met_a_full_disk_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda *_, **__: Path("/dev/full").write_bytes(b"x"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == FAILED
    assert "No space left on device; make room and give the command again" in capsys.readouterr().err


def test_an_error_that_nobody_foresaw_keeps_its_traceback_and_says_that_it_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda *_, **__: Path("/nowhere/at/all").read_bytes())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == FAILED
    told = capsys.readouterr().err
    assert "FileNotFoundError" in told and "this is a bug in ncp" in told


def test_a_source_without_a_location_or_without_files_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(Path(SMALL).read_text().replace("{builtin: stdlib-prose}", "{}"))
    code, output = ncp(tmp_path / "store", "run", str(recipe))
    assert code == 2 and "runtime.locations.stdlib-prose" in output, output
    (tmp_path / "empty").mkdir()
    code, output = ncp(
        tmp_path / "store", "run", str(recipe), f"runtime.locations.stdlib-prose={tmp_path}/empty"
    )
    assert code == 2 and "no file below" in output and output.count("\n") == 1, output


def test_the_same_arguments_plan_the_same_run_and_write_nothing(tmp_path: Path) -> None:
    records = [json.loads(ncp(tmp_path / "store", "plan", "demo", "--json")[1]) for _ in range(2)]
    assert records[0] == records[1]
    assert {step["state"] for step in records[0]["steps"]} == {"unknown"}
    assert _files(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("olmo3-7b-ncp", "8,938,363,793 parameters (17,305,600 trainable in VQ adaptation)"),
        ("olmo3-7b-vanilla-32", "7,298,011,136 parameters\n"),
        ("olmo3-7b-vanilla-34", "7,702,794,240 parameters\n"),
        ("olmo3-7b-vanilla-40", "8,917,143,552 parameters\n"),
    ],
)
def test_the_plan_prints_the_published_sizes_with_no_network(tmp_path: Path, recipe: str, line: str) -> None:
    code, output = ncp(tmp_path / "store", "plan", recipe)
    assert code == 0 and line in output, output
    assert _files(tmp_path / "store") == []


def test_the_command_line_starts_without_the_slow_libraries() -> None:
    """`ncp status` answers in under a second: most of that is importing."""
    code = "import sys, jobs.cli; sys.exit(bool({'torch', 'ray', 'pyarrow', 'datasets', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_planning_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from jobs.plan.planned import plan_recipe; from curriculum.load import load_recipe; "
        "from pipeline.storage import Storage; plan_recipe(Storage('memory://p'), load_recipe('demo')); "
        "sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def _commands(command: Any, path: str) -> dict[str, str]:
    """Every command below `command`, with its help; a group that does something itself counts too."""
    found: dict[str, str] = {}
    for name, inner in command.commands.items():
        where = f"{path} {name}"
        if not hasattr(inner, "commands") or inner.invoke_without_command:
            found[where] = inner.help or ""
        if hasattr(inner, "commands"):
            found |= _commands(inner, where)
    return found


def test_every_command_says_what_it_does_and_gives_an_example_that_parses() -> None:
    from jobs.cli import app

    group = get_command(app)
    commands = _commands(group, "ncp")
    assert {
        f"ncp {name}"
        for name in ("plan", "run", "submit", "status", "logs", "stop", "eval", "report", "which-docs")
    } <= set(commands)
    assert {"ncp runs", "ncp runs rm", "ncp gc", "ncp doctor", "ncp assets", "ncp export"} <= set(commands)
    for name, text in commands.items():
        what, separator, example = text.partition("Example: ")
        assert what.strip() and separator and example.startswith(name), f"{name}: {text}"
        words = shlex.split(example)[1:]
        command: Any = group
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        command.make_context(name, words, resilient_parsing=False)


def test_options_without_help_are_none() -> None:
    from jobs.cli import app

    def walk(command: Any, path: str) -> list[str]:
        silent = [
            f"{path} {parameter.name}"
            for parameter in command.params
            if not getattr(parameter, "help", None) and parameter.name not in ("help",)
        ]
        for name, inner in getattr(command, "commands", {}).items():
            silent += walk(inner, f"{path} {name}")
        return silent

    assert walk(get_command(app), "ncp") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    def complete(words: str) -> str:
        variables = {
            "_NCP_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        result = CliRunner().invoke(app, [], prog_name="ncp", env=variables)
        return result.output

    from jobs.cli import app

    assert "status" in complete("ncp sta")
    assert "--until" in complete("ncp run --un")
