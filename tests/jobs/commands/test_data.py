"""`ncp data` and `ncp which-docs` on real shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from curriculum.load import load_recipe, plain
from jobs.cli import app
from pipeline.data.quarantine import Quarantine
from pipeline.storage import Storage
from tests.ncp_process import SMALL
from tests.staged import stage_prose

OUTPUT = "steps/shards-prose-000000000000"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Staged prose, and a run that trains on it."""
    storage = Storage(str(tmp_path_factory.mktemp("data-commands")))
    tokenizer = stage_prose(storage, OUTPUT)
    storage.write_bytes("tokenizer.json", tokenizer.data)
    recipe = plain(load_recipe(SMALL))
    recipe["sources"] = {"prose": {"builtin": "stdlib-prose"}}
    recipe["stages"]["stage1"]["mixture"] = {"prose": 1.0}
    steps = [{"name": "shards-prose", "kind": "shards", "key": OUTPUT, "milestone": None}]
    storage.create_json("runs/r/run.json", {"run": "r", "recipe": recipe, "steps": steps})
    return storage


def _ncp(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 2, str(result.exception)
    return result.exit_code, result.output


def _which(storage: Storage, *arguments: str) -> tuple[int, str]:
    return _ncp("which-docs", "r", "--stage", "stage1", "--storage", storage.url, *arguments)


def test_inspect_shows_counts_and_decoded_beginnings(storage: Storage) -> None:
    path = f"{storage.url}/{OUTPUT}"
    code, output = _ncp(
        "data", "inspect", path, "--samples", "2", "--tokenizer", f"{storage.url}/tokenizer.json"
    )
    assert code == 0
    assert "documents_read" in output and output.count("part-0000") == 2 and " bytes\n  '" in output


def test_verify_says_intact_and_names_a_damaged_shard(storage: Storage, tmp_path: Path) -> None:
    assert _ncp("data", "verify", f"{storage.url}/{OUTPUT}") == (0, f"{storage.url}/{OUTPUT}: intact\n")
    copy = Storage(str(tmp_path))
    for key in storage.keys(OUTPUT):
        copy.write_bytes(key, storage.read_bytes(key))
    victim = next(key for key in copy.keys(OUTPUT) if "/shards/" in key)
    data = bytearray(copy.read_bytes(victim))
    data[len(data) // 2] ^= 1
    copy.write_bytes(victim, bytes(data))
    code, output = _ncp("data", "verify", f"{copy.url}/{OUTPUT}")
    assert code == 1 and os.path.basename(victim) in output and "1 problems" in output


def test_a_run_and_its_source_name_a_shard_set(storage: Storage) -> None:
    tail = ("--storage", storage.url)
    assert _ncp("data", "verify", "r", "prose", *tail) == (0, "r prose: intact\n")
    assert _ncp("data", "verify", "r", *tail) == (0, "r: intact\n"), "its only source"
    by_path, by_run = (
        _ncp("data", "stats", f"{storage.url}/{OUTPUT}"),
        _ncp("data", "stats", "r", "prose", *tail),
    )
    assert by_run == by_path and by_run[0] == 0
    code, output = _ncp("data", "list", *tail)
    assert code == 0 and OUTPUT in output and "prose: read " in output and "skipped 0" in output
    assert _ncp("data", "quarantine", "r", "prose", *tail) == (0, "r: no line is in quarantine\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "r", "pose"), "run r: no source 'pose'; did you mean 'prose'"),
        (("verify", "q", "prose"), "run: 'q' does not exist"),
        (
            ("verify", "r", "prose", "--tokenizer", "/nowhere/tokenizer.json"),
            "/nowhere/tokenizer.json does not exist",
        ),
    ],
)
def test_a_run_or_source_that_is_not_there_is_named(
    storage: Storage, arguments: tuple[str, ...], message: str
) -> None:
    code, output = _ncp("data", *arguments, "--storage", storage.url)
    assert code == 2 and message in output


def test_the_quarantine_is_shown_by_file_line_and_reason(storage: Storage, tmp_path: Path) -> None:
    copy = Storage(str(tmp_path))
    for key in (f"{OUTPUT}/manifest.json", f"{OUTPUT}/shards.arrow", "runs/r/run.json"):
        copy.write_bytes(key, storage.read_bytes(key))
    kept = Quarantine()
    for line in range(1, 4):
        kept.add("data/a.jsonl", line, "bad_json", "Expecting value", b"{broken")
    kept.write(copy, f"{OUTPUT}/quarantine/g00000.jsonl")
    code, output = _ncp("data", "quarantine", "r", "prose", "--limit", "2", "--storage", copy.url)
    assert code == 0 and output.count("bad_json: Expecting value") == 2
    assert output.startswith("data/a.jsonl:1  bad_json: Expecting value\n  '{broken'")


def test_stats_are_json(storage: Storage) -> None:
    code, output = _ncp("data", "stats", f"{storage.url}/{OUTPUT}")
    assert code == 0 and json.loads(output)["documents"] > 1000


def test_documents_of_a_step_and_steps_of_a_document_are_inverse(storage: Storage) -> None:
    code, output = _which(storage, "--step", "3")
    assert code == 0
    for line in output.splitlines()[:5]:
        source, key, _ = line.split("\t")
        assert "3" in _which(storage, "--document", f"{source}:{key}")[1].split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "exactly one of --step and --document"),
        (("--step", "41"), "41 is not a step of stage1; it has steps 1 to 40"),
        (("--document", "prose"), "not of the form SOURCE:PATH:LINE"),
        (("--document", "prose:data/nothing.jsonl:1"), "is in no shard of source 'prose'"),
        (("--document", "poetry:data/x.jsonl:1"), "'poetry' is not in the mixture"),
    ],
)
def test_what_cannot_be_answered_is_said(storage: Storage, arguments: tuple[str, ...], message: str) -> None:
    code, output = _which(storage, *arguments)
    assert code == 2 and message in output
