"""The display: a line an event, a live line each running step, nothing secret."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from jobs.show import display
from jobs.show.display import RunDisplay
from pipeline.dag.runner import Event
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _step(name: str) -> Step:
    return Step(name=name, kind="work", version=1, identity={})


def _shown(stream: io.StringIO) -> list[str]:
    """What stands on the screen after all control sequences were obeyed."""
    lines, row = [""], 0
    text = stream.getvalue()
    position = 0
    while position < len(text):
        if text.startswith("\033[K", position):
            lines[row], position = "", position + 3
        elif text.startswith("\033[A", position):
            row, position = row - 1, position + 3
        elif text[position] == "\n":
            row, position = row + 1, position + 1
            if row == len(lines):
                lines.append("")
        elif text[position] == "\r":
            position += 1
        else:
            lines[row], position = lines[row] + text[position], position + 1
    return [line for line in lines if line]


def test_several_running_steps_have_a_live_line_each_and_events_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-token")
    monkeypatch.setattr(display, "TERMINAL_SECONDS", 60.0)
    storage, stream = Storage(str(tmp_path)), _Terminal()
    kept: list[str] = []
    steps = [_step("a"), _step("b")]
    with RunDisplay(storage, 2, stream=stream, keep=kept.append) as shown:
        for done in (1, 2):
            for step in steps:
                if done == 1:
                    shown.on_event(Event(kind="started", step=step, attempt=1))
                step_store(storage, step).write_progress(1, {"done": done, "total": 9, "unit": "groups"})
            shown._show(list(shown._running.values()))
        assert [line.split()[:2] for line in _shown(stream)[-2:]] == [["a", "2/9"], ["b", "2/9"]]
        shown.on_event(Event(kind="done", step=steps[0], seconds=3))
        shown._show(list(shown._running.values()))
        assert [line.split()[0] for line in _shown(stream)[-2:]] == ["[1/2]", "b"]
        shown.on_event(Event(kind="retrying", step=steps[1], detail="refused for planted-token"))
    assert _shown(stream)[-1] == "[1/2] b: retrying: refused for [hidden]"
    assert "planted-token" not in stream.getvalue() + "".join(kept)
    assert sum("2/9" in line for line in kept) == 2
