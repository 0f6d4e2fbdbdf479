"""Telling people outside: a real webhook and a real command, and a run that does not care when they fail."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from curriculum.schema import NotifySpec
from jobs.runs.alerts import Alert, write_alert
from jobs.show.notify import URL_VARIABLE, Notifier
from pipeline.dag.runner import Failure, Outcome, Stopped
from pipeline.dag.step import Step
from pipeline.storage import Storage

STAGE = Step(name="stage1", kind="stage", version=1, identity={}, milestone=10)
DONE = Outcome(done=("stage1",), failed={}, blocked={})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "store"))


@contextmanager
def _webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback: its URL and the bodies it was sent."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook-secret", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _notifier(storage: Storage, said: list[str], **spec: str) -> Notifier:
    return Notifier(storage, "run-1", [STAGE], NotifySpec(**spec), say=said.append, poll_seconds=0.05)


def _alert(step: int) -> Alert:
    return Alert(kind="loss_spike", severity="warning", message="loss 9", step=step, attempt=1, run="run-1")


def test_the_end_of_a_run_and_its_new_alerts_reach_the_webhook(storage: Storage) -> None:
    said: list[str] = []
    write_alert(storage, STAGE.key, _alert(1))  # of an earlier run: told then
    with _webhook() as (url, bodies), _notifier(storage, said, url=url) as notifier:
        write_alert(storage, STAGE.key, _alert(2))
        notifier.ended(DONE)
    assert said == []
    by_event = {body["event"]: body for body in bodies}
    assert len(bodies) == 2 and by_event.keys() == {"alert", "done"}
    assert by_event["alert"]["optimizer_step"] == 2 and by_event["alert"]["step"] == "stage1"
    assert by_event["done"]["text"] == "ncp run-1: done: all 1 steps are done"


@pytest.mark.parametrize("refused", [True, False])
def test_a_failed_and_a_refused_run_are_told_apart(storage: Storage, refused: bool) -> None:
    failed = {"stage2": Failure(message="gate of stage1: too high", refused=refused)}
    with _webhook() as (url, bodies), _notifier(storage, [], url=url) as notifier:
        notifier.ended(Outcome(done=(), failed=failed, blocked={"report": "stage2"}))
    assert [(body["event"], body["step"]) for body in bodies] == [
        ("refused" if refused else "failed", "stage2")
    ]
    assert "too high; report: not run" in bodies[0]["message"]


def test_a_run_that_breaks_is_told_and_one_that_was_stopped_is_not(storage: Storage) -> None:
    with _webhook() as (url, bodies):
        with pytest.raises(OSError), _notifier(storage, [], url=url):
            raise OSError("no cluster")
        with pytest.raises(Stopped), _notifier(storage, [], url=url):
            raise Stopped("on request")
    assert [(body["event"], body["message"]) for body in bodies] == [("failed", "OSError: no cluster")]


def test_a_command_gets_the_same_on_its_standard_input_and_its_environment(
    storage: Storage, tmp_path: Path
) -> None:
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, sys\nopen(sys.argv[1], 'w').write(sys.stdin.read() + '\\n' + os.environ['NCP_TEXT'])\n"
    )
    told = tmp_path / "told file"
    with _notifier(storage, [], command=f"{sys.executable} {script} '{told}'") as notifier:
        notifier.ended(DONE)
    payload, text = told.read_text().splitlines()
    assert json.loads(payload)["event"] == "done" and text.startswith("ncp run-1: done")


def test_the_url_may_come_from_the_environment_alone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _webhook() as (url, bodies):
        monkeypatch.setenv(URL_VARIABLE, url)
        with _notifier(storage, []) as notifier:
            notifier.ended(DONE)
    assert [body["event"] for body in bodies] == ["done"]


@pytest.mark.parametrize(
    ("url", "command", "reason"),
    [
        ("http://127.0.0.1:9/hook-secret", "", "runtime.notify.url failed"),  # nobody listens
        ("ftp://127.0.0.1/hook-secret", "", "neither http nor https"),
        ("", "false", "runtime.notify.command failed for done (exit status 1)"),
        ("", "no-such-command", "runtime.notify.command failed"),
    ],
)
def test_what_fails_is_a_line_in_the_log_without_the_secret_and_nothing_else(
    storage: Storage, url: str, command: str, reason: str
) -> None:
    said: list[str] = []
    with _notifier(storage, said, url=url, command=command) as notifier:
        notifier.ended(DONE)
    (line,) = said
    assert reason in line and "hook-secret" not in line


def test_a_webhook_that_refuses_is_a_line_in_the_log(storage: Storage) -> None:
    said: list[str] = []
    with _webhook(500) as (url, bodies), _notifier(storage, said, url=url) as notifier:
        notifier.ended(DONE)
    assert len(bodies) == 1 and "HTTP Error 500" in said[0]


def test_with_nobody_to_tell_there_is_nothing_to_do(storage: Storage) -> None:
    with _notifier(storage, []) as notifier:
        notifier.ended(DONE)
    assert not notifier.enabled
