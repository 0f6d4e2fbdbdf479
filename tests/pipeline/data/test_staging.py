"""Staging by a real local Ray."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import SourceError
from pipeline.data.pins import make_pin
from pipeline.data.staging import StagingSuperseded, stage_source
from pipeline.storage import Storage

pytestmark = pytest.mark.usefixtures("ray_session")


def run(storage, output, pin, data, **changes):
    settings = {
        "spec": SourceSpec(),
        "tokenizer_key": "steps/tokenizer/tokenizer.json",
        "parallelism": 2,
        "cpus_per_task": 0.5,
    }
    return stage_source(storage=storage, output=output, pin=pin, data=data, **{**settings, **changes})


def contents(storage: Storage, output: str) -> dict[str, bytes]:
    return {key.removeprefix(output): storage.read_bytes(key) for key in storage.keys(output)}


def test_shards_are_the_same_bytes_at_any_parallelism(
    stdlib_storage, prose_pin, prose, small_data, tokenizer
):
    data = DataSpec(**{**vars(small_data), "group_bytes": 500_000})
    for parallelism in (1, 2, 4):
        run(
            stdlib_storage,
            f"steps/p{parallelism}",
            prose_pin,
            data,
            parallelism=parallelism,
            cpus_per_task=0.4,
        )
    one, two, four = (contents(stdlib_storage, f"steps/p{parallelism}") for parallelism in (1, 2, 4))
    assert len([key for key in one if key.startswith("/groups/")]) == 3
    assert one == two == four


def test_a_stage_killed_half_way_redoes_nothing_that_has_a_receipt(
    stdlib_storage, code_pin, code, small_data, tokenizer
):
    seen = []

    def stop_after_two() -> bool:
        return len(stdlib_storage.children("steps/halted/groups")) < 2

    with pytest.raises(StagingSuperseded, match="steps/halted: another attempt took over"):
        run(stdlib_storage, "steps/halted", code_pin, small_data, parallelism=1, is_current=stop_after_two)
    assert not stdlib_storage.exists("steps/halted/manifest.json")
    done = {
        key: os.stat(stdlib_storage.path(key)).st_mtime_ns
        for name in stdlib_storage.children("steps/halted/groups")
        for key in stdlib_storage.keys("steps/halted/shards")
        if name.removesuffix(".json") in key
    }
    assert done
    leftover = stdlib_storage.path("steps/halted/shards/.tmp-g00005-s000.arrow-dead")
    with open(leftover, "wb") as file:
        file.write(b"half a shard of a killed attempt")

    manifest = run(stdlib_storage, "steps/halted", code_pin, small_data, progress=seen.append)
    assert {key: os.stat(stdlib_storage.path(key)).st_mtime_ns for key in done} == done
    assert manifest.shards == code.shards and manifest.heldout == code.heldout
    assert seen[0]["groups_done"] > 2 and seen[-1]["groups_done"] == seen[-1]["groups"] == len(seen) + 2
    assert seen[-1]["tokens"] == code.counters.tokens_written + code.counters.tokens_held_out
    assert seen[-1]["tokens_per_second"] > 0 and seen[-1]["eta_seconds"] == 0


def test_users_errors_come_back_as_one_line_that_names_the_source_and_publish_nothing(
    stdlib_storage, tmp_path, tokenizer
):
    def stage(name: str, content: bytes):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(content)
        pin = make_pin(stdlib_storage, name, SourceSpec(), str(tmp_path / name))
        if name == "damaged":
            (tmp_path / name / "a.jsonl").write_bytes(content[:-20])
        return run(stdlib_storage, f"steps/{name}", pin, DataSpec())

    line = json.dumps({"text": "a real line of text"}).encode() + b"\n"
    with pytest.raises(SourceError, match=r"^damaged: .*a\.jsonl: \d+ bytes now.*$"):
        stage("damaged", line * 3)
    with pytest.raises(
        SourceError,
        match=r"^sources\.broken: 1 of 4 lines are unreadable.*quarantine/g00000\.jsonl \(1 bad_json\)$",
    ):
        stage("broken", line * 3 + b"{half\n")
    with pytest.raises(SourceError, match=r"^sources\.hollow: no documents to train on .*'empty': 2"):
        stage("hollow", b'{"text": ""}\n{"text": " \\n"}\n')
    for name in ("damaged", "broken", "hollow"):
        assert not stdlib_storage.exists(f"steps/{name}/manifest.json")


def pids_at_work() -> list[int]:
    """Worker processes below this one that run a group right now; Ray puts the task's name into the process title."""
    return [
        int(directory.name)
        for directory in Path("/proc").iterdir()
        if directory.name.isdigit()
        and read(directory / "cmdline").startswith("ray::Map(_GroupTask)")
        and os.getpid() in ancestors(int(directory.name))
    ]


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        status = read(Path(f"/proc/{pid}/stat"))
        pid = int(status.rpartition(")")[2].split()[1]) if status else 0
        found.append(pid)
    return found


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.matrix
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the worker through /proc")
def test_a_killed_worker_is_replaced_and_changes_no_byte(
    stdlib_storage, code_pin, code, small_data, tokenizer
):
    killed = []

    def kill_one() -> None:
        while not killed:
            for pid in pids_at_work()[:1]:
                time.sleep(0.3)  # into the middle of its group
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    manifest = run(stdlib_storage, "steps/worker-killed", code_pin, small_data)
    assert killed
    assert manifest.shards == code.shards and manifest.heldout == code.heldout
