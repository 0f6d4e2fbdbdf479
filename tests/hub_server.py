"""The HF Hub on a loopback address: its listing and file calls, with the paths and fields that `huggingface_hub` uses.

It follows the real API; the real Hub is not reached by tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator

import pytest

COMMIT = "f" * 40


class Hub(http.server.ThreadingHTTPServer):
    """One repository (a dataset, or with `kind="models"` a model) at one commit. `faults` counts down: so many requests
    for files fail first."""

    def __init__(self, repo: str, kind: str = "datasets"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.api = f"/api/{kind}/{re.escape(repo)}"
        self.content = f"/datasets/{re.escape(repo)}" if kind == "datasets" else f"/{re.escape(repo)}"
        self.repo = repo
        self.files: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.faults: list[str] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self) -> str:
        with self.lock:
            return self.faults.pop(0) if self.faults else ""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def entry(self, path: str) -> dict:
        data = self.server.files[path]
        digest = hashlib.sha256(data).hexdigest()
        lfs = {"oid": digest, "size": len(data), "pointerSize": 134}
        return {"type": "file", "oid": "0" * 40, "size": len(data), "path": path, "lfs": lfs}

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if match := re.fullmatch(rf"{self.server.api}/tree/[^/]+/?(.*)", path):
            self.server.requests["tree"] += 1
            return self.tree(match[1].rstrip("/"), urllib.parse.parse_qs(url.query))
        if match := re.fullmatch(rf"{self.server.content}/resolve/([^/]+)/(.*)", path):
            self.server.requests["file"] += 1
            return self.file(match[2])
        if re.fullmatch(rf"{self.server.api}(/revision/[^/]+)?", path):
            self.server.requests["info"] += 1
            body = {
                "id": self.server.repo,
                "sha": COMMIT,
                "private": False,
                "gated": False,
                "tags": [],
                "siblings": [],
            }
            return self.send(200, json.dumps(body).encode())
        self.send(404, b'{"error": "Repository not found"}', X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests["paths-info"] += 1
        if "json" in self.headers.get("Content-Type", ""):
            paths = json.loads(body)["paths"]
        else:
            paths = urllib.parse.parse_qs(body.decode())["paths"]
        self.send(200, json.dumps([self.entry(path) for path in paths if path in self.server.files]).encode())

    def tree(self, below: str, query: dict[str, list[str]]) -> None:
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        prefix = f"{below}/" if below else ""
        found, folders = [], set()
        for path in sorted(self.server.files):
            if not path.startswith(prefix):
                continue
            inside = path[len(prefix) :].split("/")
            folders |= {
                prefix + "/".join(inside[:n])
                for n in range(1, len(inside) if recursive else min(2, len(inside)))
            }
            if recursive or len(inside) == 1:
                found.append(self.entry(path))
        found += [
            {"type": "directory", "oid": "1" * 40, "size": 0, "path": folder} for folder in sorted(folders)
        ]
        if not found:
            return self.send(404, b'{"error": "Entry not found"}', X_Error_Code="EntryNotFound")
        self.send(200, json.dumps(found).encode())

    def file(self, path: str) -> None:
        fault = self.server.next_fault()
        if fault == "429":
            return self.send(429, b"{}", Retry_After="0")
        if path not in self.server.files:
            return self.send(404, b"{}", X_Error_Code="EntryNotFound")
        data, status, headers = self.server.files[path], 200, {"Accept-Ranges": "bytes"}
        headers["Content-Type"] = "application/octet-stream"
        headers["X_Repo_Commit"] = COMMIT
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        if fault == "short":
            data = data[: len(data) // 2]
        self.send(status, data, **headers)


@contextlib.contextmanager
def serving(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve `hub`, and let HF_ENDPOINT name it: what a new process reads from there, this one has read at its import."""
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
