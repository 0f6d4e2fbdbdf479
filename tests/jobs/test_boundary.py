"""One boundary of errors: every command, every known kind, one line and the documented exit code; anything else is a bug."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from curriculum.errors import InputError, RecipeError
from jobs import cli
from jobs.analysis.comparison import ComparisonError
from jobs.boundary import CommandGroup, run_command
from jobs.cluster.errors import ClusterUnavailable, ConnectionLost
from jobs.cluster.preflight import PreflightError
from jobs.exit_codes import DONE, EXIT_CODES, FAILED, LOST, REFUSED, STOPPED, UNREACHABLE, USAGE
from jobs.export import prepare_folder
from pipeline.data.errors import ShardError, SourceError
from pipeline.records import DamagedRecord
from pipeline.storage import Storage, StorageRefused, StorageUnavailable
from tests.jobs.stored_run import store_run


def _no_room() -> None:
    Path("/dev/full").write_bytes(b"x")


def _raises(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


KINDS = [
    (_raises(RecipeError("a: 1 is wrong")), USAGE, "error: a: 1 is wrong"),
    (_raises(ShardError("shard 3")), USAGE, "error: shard 3"),
    (_raises(SourceError("source x")), USAGE, "error: source x"),
    (_raises(ComparisonError("compare: no")), USAGE, "error: compare: no"),
    (_raises(PreflightError("runtime.x: no")), USAGE, "error: runtime.x: no"),
    (_raises(DamagedRecord("runs/x/run.json: damaged")), USAGE, "error: runs/x/run.json: damaged"),
    (_raises(StorageRefused("storage: no bucket")), USAGE, "error: storage: no bucket"),
    (_raises(StorageUnavailable("storage: silent")), UNREACHABLE, "error: storage: silent"),
    (_raises(ClusterUnavailable("--address: silent")), UNREACHABLE, "error: --address: silent"),
    (_raises(ConnectionLost("lost; ncp logs r --follow")), LOST, "error: lost; ncp logs r --follow"),
    (_raises(KeyboardInterrupt()), STOPPED, "stopped by a signal"),
    (_raises(typer.BadParameter("not so")), USAGE, "error: Invalid value: not so"),
    (_raises(typer.Exit(REFUSED)), REFUSED, ""),
    (_raises(RecipeError("one\n two\n\nthree")), USAGE, "error: one two three"),
    (_no_room, FAILED, "make room and give the command again"),
]


def _app(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("run")(command)
    app.command("other")(lambda: None)
    return app


@pytest.mark.parametrize(("command", "code", "message"), KINDS)
def test_every_known_kind_is_one_line_and_its_exit_code(
    command: Callable[[], None], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(_app(command), ["run"]) == code
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == (1 if message else 0) and "Traceback" not in said


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("x"), FileNotFoundError(errno.ENOENT, "no", "/a")]
)
def test_what_nobody_foresaw_is_a_bug_and_says_so(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(_app(_raises(error)), ["run"]) == FAILED
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.splitlines()[-1].startswith("this is a bug in ncp")


def test_a_secret_in_a_traceback_is_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    run_command(_app(_raises(KeyError("very-secret-value"))), ["run"])
    assert "very-secret-value" not in capsys.readouterr().err


def test_a_path_that_the_user_gave_is_named_with_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(to: Path) -> None:
        (to / "deep" / "file").write_text("x")

    def command(to: Annotated[Path, typer.Option()]) -> None:
        write(to)

    for words in (["run", "--to", str(tmp_path / "no")], ["run", f"--to={tmp_path / 'no'}"]):
        app = _app(command)
        assert run_command(app, words) == USAGE
        said = capsys.readouterr().err
        assert said.startswith("error: --to: ") and "no/deep/file" in said and said.count("\n") == 1


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x", "/dev/null"])
def test_a_folder_that_cannot_be_made_is_named(place: str) -> None:
    with pytest.raises(InputError, match=f"--to: '{place}' cannot be made"):
        prepare_folder(Path(place))


def test_a_stopped_run_says_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(_app(_raises(KeyboardInterrupt())), ["run"]) == STOPPED
    assert "give the same command again to resume" in capsys.readouterr().err


def test_sigterm_ends_a_command_as_an_interrupt_does(tmp_path: Path) -> None:
    code = (
        "import signal, os, sys; from jobs import cli; "
        "sys.argv = ['ncp', 'status', '--watch', '--storage', sys.argv[1]]; "
        "import jobs.commands.monitor as m; m.run_overviews = lambda s: os.kill(os.getpid(), signal.SIGTERM); cli.main()"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == STOPPED and "stopped by a signal" in ended.stderr, ended.stderr


def test_the_reader_of_the_output_may_go() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "plan", "demo"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert ended.returncode == DONE and ended.stderr == ""


def test_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(cli.app, ["--help"]) == DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert EXIT_CODES in shown
    assert all(
        f"{code} " in EXIT_CODES for code in (DONE, FAILED, USAGE, REFUSED, STOPPED, UNREACHABLE, LOST)
    )


def _commands(command: Any, path: list[str]) -> list[list[str]]:
    inner = getattr(command, "commands", {})
    found = [] if inner and not command.invoke_without_command else [path]
    return found + [one for name, sub in inner.items() for one in _commands(sub, [*path, name])]


@pytest.mark.parametrize("path", _commands(get_command(cli.app), []), ids=" ".join)
def test_every_command_refuses_an_unknown_option_in_one_line(
    path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(cli.app, [*path, "--nosuchoption"]) == USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "--nosuchoption" in said and said.count("\n") == 1


DEAD = "http://127.0.0.1:1"
ONE_LINE = [
    (["submit", "demo", "--address", DEAD], UNREACHABLE, DEAD),
    (["submit", "demo", "--address", "foo"], UNREACHABLE, "foo"),
    (["stop", "good", "--address", DEAD], UNREACHABLE, DEAD),
    (["eval", "good", "--address", DEAD], UNREACHABLE, DEAD),
    (["report", "good", "--to", "/nonexistent/x"], USAGE, "--to: '/nonexistent/x'"),
    (["export", "good", "--to", "/proc/x"], USAGE, "the tokenizer's receipt of run 'good'"),
    (["status", "none"], USAGE, "'none' does not exist"),
    (["logs", "none"], USAGE, "'none' does not exist"),
    (["stop", "none"], USAGE, "'none' does not exist"),
    (["compare", "none", "other"], USAGE, "'none' does not exist"),
    (["export", "none", "--to", "x"], USAGE, "'none' does not exist"),
    (["generate", "none"], USAGE, "'none' does not exist"),
    (["generate", "good", "--temperature", "nan"], USAGE, "--temperature"),
    (["generate", "good", "--top-p", "inf"], USAGE, "--top-p"),
    (["generate", "good", "--top-k", "0"], USAGE, "--top-k"),
    (["generate", "good", "--max-tokens", "-1"], USAGE, "--max-tokens"),
    (["eval", "none"], USAGE, "'none' does not exist"),
    (["eval", "none", "--plan"], USAGE, "'none' does not exist"),
    (["which-docs", "none", "--stage", "x", "--step", "1"], USAGE, "'none' does not exist"),
    (["runs", "rm", "none"], USAGE, "'none' does not exist"),
    (["scaling", "demo"], USAGE, "ladder"),
    (["dashboard", "--port", "99999"], USAGE, "--port"),
    (["assets", "nothing"], USAGE, "nothing"),
    (["data", "verify", "/nonexistent"], USAGE, "/nonexistent"),
    (["data", "stats", "/nonexistent"], USAGE, "/nonexistent"),
    (["data", "inspect", "/nonexistent"], USAGE, "/nonexistent"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store_run(Storage(str(folder)), "good", losses={"stage1": lambda tokens: 3.0})
    return folder


@pytest.mark.parametrize(
    ("words", "code", "named"), ONE_LINE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_every_command_turns_bad_input_into_one_line(
    store: Path, words: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(store.rglob("*"))
    storage = [] if words[0] in ("assets", "data") else ["--storage", str(store)]
    assert run_command(cli.app, [*words, *storage]) == code, capsys.readouterr().err
    said = capsys.readouterr().err
    assert said.startswith("error: ") and named in said and said.count("\n") == 1, said
    if words[0] == "submit":
        assert sorted(store.rglob("*")) == before, "a cluster that is not there leaves no trace of a run"
