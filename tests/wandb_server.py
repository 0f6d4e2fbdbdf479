"""As much of a W&B server as an online run needs to start: it takes everything, until it goes away."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

RUN = {
    "id": "UnVu",
    "name": "0123456789ab",
    "displayName": "a run",
    "config": "{}",
    "historyLineCount": 0,
    "summaryMetrics": "{}",
    "eventsTail": "[]",
    "historyTail": "[]",
    "logLineCount": 0,
    "eventsLineCount": 0,
    "tags": [],
    "wandbConfig": "{}",
    "project": {"id": "p", "name": "a-project", "entity": {"id": "e", "name": "an-entity"}},
}


class WandbServer:
    """`files` counts what was written to the run's stream; `go` away by closing the port, or by never answering again."""

    def __init__(self) -> None:
        outer = self
        self.files = 0
        self._silent = threading.Event()
        self._over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if outer._silent.is_set():
                    outer._over.wait()
                    return
                outer.files += "file_stream" in self.path
                viewer = {"id": "v", "entity": "an-entity", "flags": "{}", "username": "somebody"}
                self._answer(
                    {
                        "data": {
                            "viewer": viewer,
                            "upsertBucket": {"bucket": RUN, "inserted": True},
                            "serverInfo": {},
                        }
                    }
                )

            def _answer(self, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def go(self, how: Literal["closed", "silent"]) -> None:
        if how == "silent":
            self._silent.set()
        else:
            self._server.shutdown()
            self._server.server_close()

    def end(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer()
    try:
        yield server
    finally:
        server.end()
