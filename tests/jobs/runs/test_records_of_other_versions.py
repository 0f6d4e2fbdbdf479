"""Records that outlive versions: one that cannot be read is one marked row, and the good run beside it works fully."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import cli
from jobs.analysis.run_compare import compare_runs
from jobs.boundary import run_command
from jobs.exit_codes import DONE, USAGE
from jobs.runs.garbage import collect, unnamed
from jobs.runs.overview import run_overview, run_overviews
from jobs.runs.record import list_runs, named_milestones, read_run
from jobs.runs.recorded import recorded_recipe, unknown_keys
from jobs.show.dashboard.site import Site
from jobs.show.run_report import run_report
from pipeline.storage import Storage
from tests.jobs.stored_run import store_run


def _loss(tokens: int) -> float:
    return 3.0


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path))
    store_run(storage, "bad", "stage1.seed=99", losses={"stage1": _loss})
    store_run(storage, "good", losses={"stage1": _loss, "stage2": _loss})
    return storage


def _edit(storage: Storage, run: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write the record anew, as another version would have: the digest is right."""
    record = storage.read_json(f"runs/{run}/run.json")
    change(record)
    storage.write_json(f"runs/{run}/run.json", record)


def _flip(storage: Storage, run: str) -> None:
    path = Path(storage.path(f"runs/{run}/run.json"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Storage], None]] = {
    "flipped bit": lambda s: _flip(s, "bad"),
    "empty": lambda s: s.write_bytes("runs/bad/run.json", b""),
    "cut in half": lambda s: s.write_bytes("runs/bad/run.json", s.read_bytes("runs/bad/run.json")[:999]),
    "no JSON": lambda s: s.write_bytes("runs/bad/run.json", b"\xff\xfe{}"),
    "a list": lambda s: s.write_bytes("runs/bad/run.json", b"[1, 2]"),
    "without steps": lambda s: _edit(s, "bad", lambda record: record.pop("steps")),
    "steps of another form": lambda s: _edit(s, "bad", lambda r: r.update(steps={"stage1": "steps/x"})),
    "steps without keys": lambda s: _edit(
        s, "bad", lambda r: r.update(steps=[{"name": "x", "kind": "stage"}])
    ),
    "without recipe": lambda s: _edit(s, "bad", lambda record: record.pop("recipe")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_record_that_cannot_be_read_is_one_marked_row(
    storage: Storage, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](storage)
    found = {one.status.run: one.status for one in run_overviews(storage)}
    assert found["bad"].state == "unreadable" and "runs/bad/run.json" in found["bad"].problem
    assert found["good"].state == "stopped" and found["good"].steps
    for words in (["status"], ["runs"]):
        assert run_command(cli.app, [*words, "--storage", storage.url]) == DONE
        shown = capsys.readouterr().out
        assert "unreadable" in shown and "good" in shown
        assert run_command(cli.app, [*words, "--json", "--storage", storage.url]) == DONE
        rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["bad"]["state"] == "unreadable" and rows["bad"]["problem"]
    for words in (["status", "bad"], ["report", "bad"], ["compare", "good", "bad"], ["stop", "bad"]):
        assert run_command(cli.app, [*words, "--storage", storage.url]) == USAGE
        said = capsys.readouterr().err
        assert "runs/bad/run.json" in said and said.count("\n") <= 1, words
    assert run_command(cli.app, ["report", "bad", "good", "--storage", storage.url]) == DONE
    assert "left out" in capsys.readouterr().err
    site = Site(storage)
    page = site.index_page()
    assert "unreadable" in page and "/runs/good" in page and site.run_page("good")
    assert compare_runs(storage, ["good"], ["good"]).stages


@pytest.mark.parametrize("damage", DAMAGE)
def test_nothing_is_collected_that_an_unreadable_record_may_name(storage: Storage, damage: str) -> None:
    DAMAGE[damage](storage)
    steps, pinned = storage.children("steps"), storage.keys("pins")
    items = unnamed(storage)
    assert items and all("runs/bad/run.json" in item.kept for item in items)
    stayed = collect(storage, lambda item: pytest.fail(f"removed {item}"))
    assert stayed == items
    assert storage.children("steps") == steps and storage.keys("pins") == pinned
    key = next(step["key"] for step in read_run(storage, "good")["steps"] if step["name"] == "stage1")
    assert named_milestones(storage, key) == {200}, "retention keeps every milestone meanwhile"


def test_the_record_and_log_of_an_unreadable_run_can_be_removed(storage: Storage) -> None:
    _flip(storage, "bad")
    assert run_command(cli.app, ["runs", "rm", "bad", "--yes", "--storage", storage.url]) == DONE
    assert list_runs(storage) == ["good"] and all(not item.kept for item in unnamed(storage))


def test_keys_of_a_newer_version_are_left_out_and_named(storage: Storage) -> None:
    def newer(record: dict[str, Any]) -> None:
        record["written_by"] = "ncp 9"
        record["recipe"]["novel"] = {"a": 1}
        record["recipe"]["stages"]["stage1"]["optimizer"]["beta3"] = 0.5
        record["recipe"]["model"]["flux"] = True
        record["steps"][0]["colour"] = "red"

    _edit(storage, "bad", newer)
    record = read_run(storage, "bad")
    assert set(unknown_keys(record)) == {"novel", "stages.stage1.optimizer.beta3", "model.flux"}
    assert list(recorded_recipe(record).stages) == ["stage1", "stage2"]
    overview = run_overview(storage, "bad")
    (note,) = [alert for alert in overview.alerts if alert.kind == "unknown_keys"]
    assert "stages.stage1.optimizer.beta3" in note.message and len(overview.stages) == 2
    assert any("beta3" in alert.message for alert in run_report(storage, "bad").alerts)
    assert all(not item.kept for item in unnamed(storage))


def test_what_a_newer_version_says_of_a_source_keeps_the_pins(storage: Storage) -> None:
    _edit(storage, "bad", lambda record: record["recipe"]["sources"]["stdlib-code"].update(decoder="x"))
    storage.write_json("pins/somebody.json", {})
    (item,) = [item for item in unnamed(storage) if item.key == "pins/somebody.json"]
    assert "sources.stdlib-code.decoder" in item.kept


@pytest.mark.parametrize(
    "part", ["receipt.json", "progress/000001.json", "lease/000001.json", "failures/000001.json"]
)
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"odd": 1}', b"\xff"])
def test_a_damaged_record_of_a_step_is_that_steps_row(storage: Storage, part: str, content: bytes) -> None:
    steps = {step["name"]: step["key"] for step in read_run(storage, "bad")["steps"]}
    name = "tokenizer" if part == "receipt.json" else "stage2"
    storage.write_bytes(f"{steps[name]}/{part}", content)
    overview = run_overview(storage, "bad")
    state = {step.name: step for step in overview.status.steps}
    assert state[name].state in ("unreadable", "failed", "waiting", "stopped"), state[name]
    assert state["stage1"].state == "done"
    assert {one.status.run for one in run_overviews(storage)} == {"bad", "good"}
    assert run_report(storage, "bad").stages
    if content != b'{"odd": 1}':
        assert state[name].state == "unreadable" and any(a.name == name for a in overview.alerts)


def test_a_damaged_alert_is_an_alert_beside_the_others(storage: Storage) -> None:
    key = next(step["key"] for step in read_run(storage, "good")["steps"] if step["name"] == "stage1")
    storage.write_bytes(f"{key}/alerts/000000001-a.json", b"{")
    (alert,) = [one for one in run_overview(storage, "good").alerts if one.kind == "unreadable"]
    assert "alerts/000000001-a.json" in alert.message


def test_a_damaged_pin_keeps_the_laid_out_text(storage: Storage) -> None:
    from jobs.runs.garbage import pin_key  # the very function that collection uses

    key = pin_key("stdlib-code", recorded_recipe(read_run(storage, "good")).sources["stdlib-code"])
    storage.write_bytes(key, b"{")
    storage.write_bytes("sources/text/a.txt", b"x")
    (item,) = [item for item in unnamed(storage) if item.kind == "source"]
    assert key in item.kept


# --- order -------------------------------------------------------------------------------------------------


def _three(tmp_path: Path) -> Path:
    """Three stages whose names do not sort: each goes on from the one before."""
    from curriculum.load import load_recipe, plain

    recipe = plain(load_recipe("demo"))
    first, second = recipe["stages"]["stage1"], recipe["stages"]["stage2"]
    stages = {"pretrain": first}
    for name, parent in (("mid", "pretrain"), ("long", "mid")):
        stages[name] = json.loads(json.dumps(second))
        stages[name]["init"]["from"] = parent
    path = tmp_path / "three.yaml"
    path.write_text(json.dumps({**recipe, "recipe": "three", "stages": stages}))
    return path


LOSSES = {"pretrain": lambda tokens: 4.0, "mid": lambda tokens: 3.0, "long": lambda tokens: 2.0}


@pytest.mark.parametrize("old", [False, True], ids=["as written now", "as an older version wrote it"])
def test_the_order_of_the_stages_survives_every_record(tmp_path: Path, old: bool) -> None:
    storage = Storage(str(tmp_path / "store"))
    store_run(storage, "r", recipe=str(_three(tmp_path)), losses=LOSSES)
    if old:  # keys sorted, no list of stages, no digest
        record = storage.read_json("runs/r/run.json")
        del record["stages"]
        storage.write_bytes("runs/r/run.json", json.dumps(record, sort_keys=True).encode())
    order = ["pretrain", "mid", "long"]
    assert list(read_run(storage, "r")["recipe"]["stages"]) == order
    overview = run_overview(storage, "r")
    assert [stage.name for stage in overview.stages] == order
    assert [stage["name"] for stage in overview.record()["stages"]] == order
    assert [stage.first_token for stage in overview.stages] == sorted(s.first_token for s in overview.stages)
    report = run_report(storage, "r")
    assert [stage.name for stage in report.stages] == order
    loss = next(curve for curve in report.curves if curve.key == "ntp")
    assert list(loss.x) == sorted(loss.x) and loss.y[0] == 4.0 and loss.y[-1] == 2.0
    assert [one.stage for one in compare_runs(storage, ["r"], ["r"]).stages] == order
    page = Site(storage).run_page("r")
    assert page.index(">pretrain<") < page.index(">mid<") < page.index(">long<")
    assert "<td>2.000</td>" in Site(storage).index_page() or ">2<" in Site(storage).index_page()
