"""A proxy in front of a real S3 server that answers 503 to what it is told to: storage in trouble, over a real socket."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FailingProxy:
    """`fails` is a piece of the path whose writes are refused; empty: everything passes."""

    def __init__(self, port: int):
        proxy = self
        self.fails = ""
        self.refused = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.fails and proxy.fails in self.path and self.command in ("PUT", "POST"):
                    proxy.refused += 1
                    self.answer(503, {}, b"")
                    return
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                server.request(self.command, self.path, body, dict(self.headers))
                response = server.getresponse()
                self.answer(response.status, dict(response.getheaders()), response.read())
                server.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                known = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", known)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[FailingProxy]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
