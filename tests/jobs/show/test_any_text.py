"""Any bytes go through the log and its readers, and no clock, terminal or signal is taken for what it is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from curriculum.schema import NotifySpec
from jobs.runs.log import RunLog, log_tail, read_run_log, read_step_log
from jobs.runs.overview import run_overview
from jobs.runs.status import sign_of_life
from jobs.show.display import RunDisplay
from jobs.show.notify import Notifier
from jobs.show.report.page import document
from pipeline.dag.runner import Event
from pipeline.dag.step import Step
from pipeline.storage import Storage
from tests.jobs.stored_run import lease, store_run

ODD = ["lone \ud800 half", "bytes \udcff\udc80", "nul \0 bell \a", "\u2028 line", "ключ 🜁", "\x1b[31mred"]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path / "store"))
    store_run(storage, "r", losses={"stage1": lambda tokens: 3.0})
    return storage


@pytest.mark.parametrize("text", ODD)
def test_any_text_goes_through_the_log(storage: Storage, text: str) -> None:
    with RunLog(storage, "r") as log:
        log.add(text)
        log.add("after")
    shown = "".join(read_run_log(storage, "r"))
    assert shown.encode() and " after\n" in shown and log_tail(storage, "r")


def test_a_character_that_two_parts_share_is_whole(storage: Storage) -> None:
    data = "2026-01-01T00:00:00Z ключ\n".encode()
    storage.write_bytes("runs/r/log/000001/000000.txt", data[:-2])
    storage.write_bytes("runs/r/log/000001/000001.txt", data[-2:])
    assert "".join(read_run_log(storage, "r")) == data.decode()


@pytest.mark.parametrize("data", [b"cut \xd0", b"\xff\xfe\x00", b"\xed\xa0\x80 half\n"])
def test_a_part_of_any_bytes_is_shown(storage: Storage, data: bytes) -> None:
    storage.write_bytes("runs/r/log/000001/000000.txt", data)
    assert "".join(read_run_log(storage, "r"))
    assert log_tail(storage, "r")


def test_stacks_of_any_bytes_are_shown(storage: Storage) -> None:
    key = next(key for key in storage.children("steps") if key.startswith("stage1"))
    storage.write_bytes(f"steps/{key}/stacks/000001-0.txt", b"\xff stack")
    storage.write_bytes(f"steps/{key}/failures/000001.json", b"{")
    shown = "".join(read_step_log(storage, "r", "stage1"))
    assert "stack" in shown and "failures/000001.json" in shown


def test_a_page_takes_half_of_a_surrogate_pair() -> None:
    assert "a ? b" in document("t", "a \ud800 b")


def test_a_sign_of_life_from_a_clock_ahead_is_said_as_that() -> None:
    assert sign_of_life(time.time() - 30).startswith("last sign of life 3")
    assert sign_of_life(time.time() + 2) == "last sign of life 0 s ago"
    assert sign_of_life(time.time() + 3600).startswith("its clock is ")
    assert "-" not in sign_of_life(time.time() + 3600)


def test_the_status_of_a_run_on_a_machine_whose_clock_is_ahead(storage: Storage) -> None:
    key = next(key for key in storage.children("steps") if key.startswith("stage2"))
    lease(storage, f"steps/{key}", "r", alive=True)
    storage.write_json(
        f"steps/{key}/progress/000001.json", {"unit": "tokens", "done": 1, "at": time.time() + 3600}
    )
    step = next(step for step in run_overview(storage, "r").status.steps if step.name == "stage2")
    assert step.state == "running" and "ahead of this machine's" in step.detail


class _Told(Notifier):
    """Keeps what would be sent."""

    def _put(self, event, step, severity, message, **more) -> None:  # type: ignore[no-untyped-def]
        told.append(event)


told: list[str] = []


@pytest.mark.parametrize(
    ("error", "events"),
    [(KeyboardInterrupt(), []), (SystemExit(15), []), (RuntimeError("x"), ["failed"])],
)
def test_a_signal_is_no_failure_to_tell_of(storage: Storage, error: BaseException, events: list[str]) -> None:
    told.clear()
    with (
        pytest.raises(type(error)),
        _Told(storage, "r", [], NotifySpec(command="true"), say=print),
    ):
        raise error
    assert told == events


def test_a_signal_is_kept_in_the_log_as_one(storage: Storage) -> None:
    with pytest.raises(KeyboardInterrupt), RunLog(storage, "r"):
        raise KeyboardInterrupt
    assert "stopped by a signal" in "".join(read_run_log(storage, "r"))


class _Gone:
    """A terminal whose session has ended."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_terminal_that_is_gone_ends_no_run(storage: Storage) -> None:
    kept: list[str] = []
    step = Step(name="x", kind="work", version=1, identity={})
    with RunDisplay(storage, 1, stream=_Gone(), keep=kept.append) as display:  # type: ignore[arg-type]
        display.on_event(Event(kind="started", step=step, attempt=1))
        display.line("said")
    assert len(kept) == 2


def test_the_banner_is_of_the_attempt_itself(storage: Storage) -> None:
    """Attempt 2, with a lower stop, has written nothing yet: the file is attempt 1's."""
    step = Step(name="stage1", kind="stage", version=1, identity={}, milestone=50)
    record = {
        "resumes_at": 0, "stage": "stage1", "from": None, "carried": "nothing", "first_lr": 0.0, "peak_lr": 0.1,
        "seed": 1, "data_position": 0, "tokens_total": 0, "stop_step": 100, "global_batch_tokens": 512,
        "sequence_length": 64, "attempt": 1,
    }  # fmt: skip
    storage.write_json(f"{step.key}/transition.json", record)
    kept: list[str] = []
    display = RunDisplay(storage, 1, keep=kept.append)
    display._show([(step, 2)])
    assert kept == []
    storage.write_json(f"{step.key}/transition.json", {**record, "attempt": 2, "stop_step": 50})
    display._show([(step, 2)])
    assert len(kept) == 1 and "50 steps" in kept[0]
