"""A proxy before an S3 server that answers 503 SlowDown or resets the connection, as busy stores do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import struct
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def faulty_proxy(backend: int) -> Iterator[FaultyProxy]:
    """A running proxy before the server at port `backend`; faultless until its `share` is set."""
    server = FaultyProxy(backend)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class FaultyProxy(http.server.ThreadingHTTPServer):
    """Passes requests on unchanged, but fails a share of them first."""

    daemon_threads = True

    def __init__(self, backend: int):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.backend = backend
        self.share = 0.0
        self.random = random.Random(7)
        self.lock = threading.Lock()
        self.slow_downs = self.resets = self.after_success = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self) -> str:
        with self.lock:
            if self.random.random() >= self.share:
                return ""
            kind = self.random.choice(["slow_downs", "resets", "after_success"])
            setattr(self, kind, getattr(self, kind) + 1)
            return kind


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle_expect_100(self) -> bool:
        self.send_response_only(100)
        self.end_headers()
        return True

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault()
        if fault == "slow_downs":
            xml = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
            self.send_response(503)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(xml)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else xml)
            return
        if fault == "resets":
            return self.reset()
        backend = http.client.HTTPConnection("127.0.0.1", self.server.backend, timeout=30)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("expect", "connection")
        }
        backend.request(self.command, self.path, body, headers)
        response = backend.getresponse()
        data = response.read()
        if fault == "after_success":  # the store did it, but the client never hears
            backend.close()
            return self.reset()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                if name.lower() == "content-length" and self.command != "HEAD":
                    value = str(len(data))
                self.send_header(name, value)
        if not response.getheader("Content-Length"):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        backend.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
