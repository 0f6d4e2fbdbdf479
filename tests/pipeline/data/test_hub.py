"""Sources on the HF Hub, against a loopback server that speaks its listing and file calls.

The server follows the real API's paths and fields as `huggingface_hub` uses them; the real Hub is not reached by tests.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections import Counter

import pytest
import zstandard

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import SourceError
from pipeline.data.pins import make_pin
from pipeline.storage import Storage

COMMIT = "f" * 40
REPO = "allenai/dolma3_mix-test"


class Hub(http.server.ThreadingHTTPServer):
    """One dataset repository at one commit. `faults` counts down: so many requests for files fail first."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
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
        if match := re.fullmatch(rf"/api/datasets/{REPO}/tree/[^/]+/?(.*)", path):
            self.server.requests["tree"] += 1
            return self.tree(match[1].rstrip("/"), urllib.parse.parse_qs(url.query))
        if match := re.fullmatch(rf"/datasets/{REPO}/resolve/([^/]+)/(.*)", path):
            self.server.requests["file"] += 1
            return self.file(match[2])
        if re.fullmatch(rf"/api/datasets/{REPO}(/revision/[^/]+)?", path):
            self.server.requests["info"] += 1
            body = {"id": REPO, "sha": COMMIT, "private": False, "gated": False, "tags": [], "siblings": []}
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


@pytest.fixture
def hub(monkeypatch, prose_texts, lines):
    server = Hub()
    for number in range(3):
        content = zstandard.compress(lines(*prose_texts[number * 200 : (number + 1) * 200]))
        server.files[f"data/common_crawl-{number}/shard_0.jsonl.zst"] = content
    server.files["README.md"] = b"# Dolma"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_hub_dataset_is_pinned_by_the_hashes_of_its_listing_without_a_download(hub, tmp_path):
    pin = make_pin(
        Storage(str(tmp_path)), "mix", SourceSpec(globs=("data/*-[01]/**",)), f"hf://datasets/{REPO}"
    )
    assert [file.path for file in pin.files] == [f"data/common_crawl-{n}/shard_0.jsonl.zst" for n in (0, 1)]
    for file in pin.files:
        assert (file.size, file.sha256) == (
            len(hub.files[file.path]),
            hashlib.sha256(hub.files[file.path]).hexdigest(),
        )
    assert hub.requests["file"] == 0


def test_the_pin_keeps_the_commit_that_the_branch_stood_for(hub, tmp_path):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    assert pin.location == f"hf://datasets/{REPO}@{COMMIT}"
    assert make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}") == pin
    inside = make_pin(storage, "one", SourceSpec(), f"hf://datasets/{REPO}@main/data/common_crawl-1")
    assert inside.location == f"hf://datasets/{REPO}@{COMMIT}/data/common_crawl-1"
    assert [file.path for file in inside.files] == ["shard_0.jsonl.zst"]


def test_a_hub_source_is_staged_like_the_same_files_on_disk(hub, tmp_path, stage, tokenizer):
    storage = Storage(str(tmp_path / "store"))
    for path, content in hub.files.items():
        storage.write_bytes(f"copy/{path}", content)
    remote = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    local = make_pin(Storage(str(tmp_path / "other")), "mix", SourceSpec(), str(tmp_path / "store/copy"))
    assert remote.digest == local.digest
    one = stage(storage, "steps/remote", remote, tokenizer, DataSpec())
    two = stage(storage, "steps/local", local, tokenizer, DataSpec())
    assert one.shards == two.shards and one.counters == two.counters


def test_throttling_is_waited_out(hub, tmp_path, stage, tokenizer):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    hub.faults = ["429", "429"]
    manifest = stage(storage, "steps/mix", pin, tokenizer, DataSpec(heldout_fraction=0.0))
    assert not hub.faults and manifest.counters.documents_written == 600


def test_a_body_shorter_than_the_listing_says_is_an_error_and_publishes_nothing(
    hub, tmp_path, stage, tokenizer
):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    hub.faults = ["short"] * 50
    with pytest.raises(SourceError):
        stage(storage, "steps/mix", pin, tokenizer, DataSpec())
    assert not storage.keys("steps/mix/groups")


def test_a_dataset_that_is_not_there_is_named(hub, tmp_path):
    with pytest.raises(
        SourceError, match=r"runtime\.locations\.mix: 'hf://datasets/allenai/none' cannot be listed"
    ):
        make_pin(Storage(str(tmp_path)), "mix", SourceSpec(), "hf://datasets/allenai/none")
