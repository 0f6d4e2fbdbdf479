"""The dashboard over HTTP: what it answers, what it refuses, and that a page costs the same however long the run."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from jobs.runs.alerts import Alert, write_alert
from jobs.runs.overview import run_overview
from jobs.show.dashboard.hosts import host_allowed, is_loopback
from jobs.show.dashboard.server import DashboardServer
from jobs.show.dashboard.site import Site
from pipeline.storage import Storage
from tests.jobs.counting import CountingStorage
from tests.jobs.stored_run import lease, store_run
from tests.ncp_process import NcpProcess, ncp

EVIL = "<img src=x onerror=alert(1)>\"'&"


def get(
    server: DashboardServer, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def record(server: DashboardServer, path: str) -> dict:
    status, headers, body = get(server, path)
    assert status == 200 and headers["Content-Type"] == "application/json"
    return json.loads(body)


@pytest.fixture
def two_runs(storage: Storage) -> None:
    store_run(
        storage,
        "one",
        losses={"stage1": lambda tokens: 5.0, "stage2": lambda tokens: 4.0},
        evaluations={"stage1": {"copa": 0.75}},
    )
    store_run(
        storage,
        "two",
        "stage1.optimizer.lr=0.001",
        losses={"stage1": lambda tokens: 4.5},
        taken={"stage1": 30},
    )
    storage.write_bytes("runs/one/log/000001/000000.txt", b"2025-01-01T00:00:00Z a line of the log\n")


@pytest.mark.usefixtures("two_runs")
def test_pages_show_what_storage_holds(server: DashboardServer) -> None:
    status, headers, body = get(server, "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    for expected in ('href="/runs/one"', 'href="/runs/two"', "1.02M", "Compare the chosen runs"):
        assert expected in body.decode(), expected
    page = get(server, "/runs/one")[2].decode()
    for expected in ("Curriculum", "Next-token loss", 'class="dag"', "a line of the log", "75.0%", "end of the stage"):  # fmt: skip
        assert expected in page, expected
    both = get(server, "/compare?run=one&run=two")[2].decode()
    assert "stages.stage1.optimizer.lr" in both and "0.001" in both and "training FLOPs" in both


@pytest.mark.usefixtures("two_runs")
def test_records_are_those_of_the_command_line(server: DashboardServer, storage: Storage) -> None:
    assert record(server, "/api/runs") == ["one", "two"]
    assert record(server, "/api/runs/two") == json.loads(json.dumps(run_overview(storage, "two").record()))
    series = record(server, "/api/runs/one/series")
    assert series["curves"]["ntp"]["values"][0] == 5.0 and series["curves"]["ntp"]["tokens"][-1] == 1_024_000


@pytest.mark.usefixtures("two_runs")
def test_only_changed_sections_are_sent(server: DashboardServer, storage: Storage) -> None:
    first = record(server, "/runs/two/sections")
    assert not first["live"] and "training" in first["sections"]
    have = ".".join(digest for digest, _ in first["sections"].values())
    assert record(server, f"/runs/two/sections?have={have}")["sections"] == {}
    storage.write_bytes("runs/two/log/000001/000000.txt", b"news\n")
    server.site._kept.clear()
    assert list(record(server, f"/runs/two/sections?have={have}")["sections"]) == ["log"]


@pytest.mark.usefixtures("two_runs")
def test_a_running_run_is_live(server: DashboardServer, storage: Storage) -> None:
    lease(storage, run_overview(storage, "two").status.steps[3].key, "two", alive=True)
    assert record(server, "/runs/two/sections")["live"] and record(server, "/sections")["live"]


@pytest.mark.usefixtures("two_runs")
def test_other_paths_are_not_found(server: DashboardServer) -> None:
    for path in (
        "/nothing", "/runs/three", "/runs/", "/runs/..", "/runs/%2e%2e/one", "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/one/../two", "/runs/one%00", "/runs/one/log", "/api/runs/%2e%2e%2fone", "/etc/passwd",
        "/compare?run=one", "/compare?run=one&run=../two", "/runs/%3Cscript%3E",
    ):  # fmt: skip
        status, headers, body = get(server, path)
        assert status == 404 and headers["Content-Type"].startswith("text/plain"), path
        assert b"root:" not in body


def test_it_is_read_only(server: DashboardServer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, headers, _ = get(server, "/", method=method)
        assert status == 405 and headers["Allow"] == "GET, HEAD", method


@pytest.mark.usefixtures("two_runs")
def test_head_has_the_headers_alone(server: DashboardServer) -> None:
    status, headers, body = get(server, "/runs/one", method="HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 1000 and body == b""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8300", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:8300", 200), ("10.0.0.7", 200),
        ("ncp.example:8300", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil", 421),
        ("", 421), ("a" * 300, 421),
    ],
)  # fmt: skip
def test_unknown_host_names_are_refused(server: DashboardServer, host: str, status: int) -> None:
    """The guard against DNS rebinding."""
    assert get(server, "/", Host=host)[0] == status
    assert host_allowed(host, ["ncp.example"]) == (status == 200)


def test_a_request_without_a_host_is_refused(server: DashboardServer) -> None:
    assert get(server, "/", Host="")[0] == 421 and not host_allowed(None)


def test_only_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.7", "example.org", "")))


@pytest.mark.usefixtures("two_runs")
def test_the_policy_admits_our_style_and_script_alone(server: DashboardServer) -> None:
    for path in ("/", "/runs/one", "/nothing", "/sections"):
        headers = get(server, path)[1]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
    page = get(server, "/runs/one")[2].decode()
    assert not re.search(r'\sstyle="|\son\w+="|javascript:', page)
    assert page.count("<script>") == 1 and page.count("<style>") == 1 and "https:" not in page


def test_what_storage_holds_is_escaped(server: DashboardServer, storage: Storage) -> None:
    """Names, recipes, log lines, failures and alerts of someone who wants to run a script in the reader's browser."""
    steps = store_run(storage, "r", losses={"stage1": lambda tokens: 5.0}, evaluations={"stage1": {}})
    storage.write_bytes("runs/r/log/000001/000000.txt", f"{EVIL}</pre><script>alert(2)</script>\n".encode())
    key = steps["stage2"].key
    storage.write_json(f"{key}/failures/000001.json", {"error": EVIL, "class": EVIL, "at": 0})
    alert = Alert(kind="loss_spike", severity=EVIL, message=EVIL, step=1, attempt=1, run="r", at=0.0)
    write_alert(storage, steps["stage1"].key, alert)
    receipt = f"{steps['stage1-eval'].key}/receipt.json"
    quoted = json.dumps(EVIL)[1:-1]
    text = json.dumps(storage.read_json(receipt)).replace("stdlib-code", quoted)
    storage.write_json(receipt, json.loads(text))
    run = storage.read_json("runs/r/run.json")
    run["recipe"] |= {"recipe": EVIL, "description": EVIL}
    run["recipe"]["stages"]["stage1"]["mixture"] = {EVIL: 1.0}
    run["overrides"] = [EVIL]
    run["steps"][-1]["name"] = EVIL
    storage.write_json("runs/r/run.json", run)
    for path in ("/", "/runs/r", "/runs/r/sections"):
        status, _, body = get(server, path)
        assert status == 200
        text = body.decode()
        assert "<img" not in text and "<script>alert" not in text, path
        assert "&lt;img src=x" in text, path


def test_a_record_that_points_outside_is_refused(server: DashboardServer, storage: Storage) -> None:
    store_run(storage, "r", losses={})
    run = storage.read_json("runs/r/run.json")
    run["steps"][0]["key"] = "../../etc"
    storage.write_json("runs/r/run.json", run)
    status, _, body = get(server, "/runs/r")
    assert status == 404 and b"leaves the storage root" in body


def test_a_long_run_costs_no_more_to_send_or_to_follow() -> None:
    """30,000 rows against 2,000: curves and pages of about one size, and every segment read once."""
    sizes = []
    for rows in (2_000, 30_000):
        storage = CountingStorage(f"memory://dashboard-long-{rows}")
        tokens = f"stage1.tokens={4096 * rows}", f"stage1.horizon_tokens={4096 * rows}"
        store_run(storage, "r", *tokens, "stage1.max_repetition=100000", segment_rows=5_000,
                  losses={"stage1": lambda tokens: 2 + (tokens % 40_961) / 40_961})  # fmt: skip
        site = Site(storage)
        sizes.append((len(json.dumps(site.series_record("r"))), len(site.run_page("r"))))
        series = site.series_record("r")["curves"]
        assert all(len(curve["values"]) <= 1000 for curve in series.values())
        storage.reset()
        site._kept.clear()
        site.run_page("r")
        assert storage.bytes < 1_500_000 and storage.reads < 60
    assert sizes[1][0] < 1.3 * sizes[0][0] and sizes[1][1] < 1.3 * sizes[0][1]


@pytest.mark.usefixtures("two_runs")
def test_pages_are_compressed_for_those_who_ask(server: DashboardServer) -> None:
    plain = get(server, "/runs/one")[2]
    status, headers, packed = get(server, "/runs/one", Accept_Encoding="gzip")
    assert status == 200 and headers["Content-Encoding"] == "gzip"
    assert len(packed) < len(plain) / 3 and len(gzip.decompress(packed)) == len(plain)


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    process = NcpProcess(tmp_path / "store", "dashboard", "--port", "0", "--host", "0.0.0.0")
    assert process.process.stdout is not None
    lines = [process.process.stdout.readline() for _ in range(2)]
    assert any("warning: there is no password" in line for line in lines), lines
    port = re.search(r"http://0\.0\.0\.0:(\d+)/", "".join(lines))
    assert port is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/", timeout=60) as answer:
        assert b"No runs yet" in answer.read()
    taken = ncp(tmp_path / "store", "dashboard", "--port", port[1], "--host", "0.0.0.0")
    assert taken[0] == 2 and "choose another" in taken[1]
    process.process.send_signal(signal.SIGINT)
    assert process.finish()[0] == 0
