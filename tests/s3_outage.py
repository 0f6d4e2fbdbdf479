"""A proxy before an S3 server that can be away in three ways: it refuses connections, hangs, or answers 503."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal

Mode = Literal["passes", "refuses", "hangs", "busy"]
BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 89\r\nConnection: close\r\n\r\n"
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
)
_PIECE = 1 << 16


class Outage:
    """Bytes go through unread while it `passes`. Each change of `mode` breaks the connections that stand."""

    def __init__(self, backend: int):
        self._backend = backend
        self._mode: Mode = "passes"
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self.turned_away = 0
        """Connections that came while it was away (those that were refused are not seen)."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def become(self, mode: Mode) -> None:
        """Be away, or be back, from now on."""
        with self._lock:
            before, self._mode = self._mode, mode
            standing, self._connections = self._connections, set()
            if mode == "refuses":
                _close(self._listener)
            elif before == "refuses":
                self._listener = self._listen(self.port)
        for connection in standing:
            if mode != "hangs":  # a server that hangs keeps what it has, and says nothing more
                _close(connection)
        if mode == "hangs":
            with self._lock:
                self._connections |= standing

    @contextlib.contextmanager
    def away(self, mode: Mode) -> Iterator[None]:
        self.become(mode)
        try:
            yield
        finally:
            self.become("passes")

    def close(self) -> None:
        self.become("refuses")

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            mode = self._mode
            self._connections.add(client)
            self.turned_away += mode != "passes"
        if mode == "refuses":
            _close(client)
        elif mode == "busy":
            with contextlib.suppress(OSError):
                client.recv(_PIECE)
                client.sendall(BUSY)
                client.settimeout(1.0)
                while client.recv(_PIECE):  # the rest of a body, so that the answer is read before the end
                    pass
            _close(client)
        elif mode == "passes":
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", self._backend))
                with self._lock:
                    self._connections.add(server)
                threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
                self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if self._mode == "hangs":
                    return
                target.sendall(piece)
        if self._mode == "hangs":
            return
        for one in (source, target):
            _close(one)
            with self._lock:
                self._connections.discard(one)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def outage_proxy(backend: int) -> Iterator[Outage]:
    """A running proxy before the server at port `backend`."""
    proxy = Outage(backend)
    try:
        yield proxy
    finally:
        proxy.close()
