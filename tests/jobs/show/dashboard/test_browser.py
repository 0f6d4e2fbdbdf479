"""The dashboard in a real browser: it refreshes by itself, obeys its own policy, and runs nobody else's script."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.show.dashboard.server import DashboardServer
from jobs.show.dashboard.site import Sections
from jobs.show.report.page import render_page
from jobs.show.run_report import run_report
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.jobs.show.dashboard.chromium import needs_browser, visit
from tests.jobs.stored_run import lease, store_run

pytestmark = needs_browser


def test_a_page_follows_the_run_without_being_loaded_again(server: DashboardServer, storage: Storage) -> None:
    """Between the page and the script's first look the run goes on; the browser's document must then show it."""
    steps = store_run(storage, "r", losses={"stage1": lambda tokens: 5.0}, taken={"stage1": 100})
    key = steps["stage1"].key
    lease(storage, key, "r", alive=True)
    looks = 0
    real = server.site.run_sections

    def look(run: str) -> Sections:
        nonlocal looks
        looks += 1
        if looks == 2:  # the first is the page itself
            storage.write_bytes("runs/r/log/000001/000000.txt", b"a line that came later\n")
            StepStore(storage, key).write_progress(1, {"step": 150, "rate": 1000.0, "loss": 3.25})
            server.site._kept.clear()
        return real(run)

    server.site.run_sections = look
    seen = visit(f"{server.url}runs/r", seconds=8)
    assert looks > 2
    assert "a line that came later" in seen.dom and "step 150 of 200" in seen.dom
    assert re.search(r'class="live on"[^>]*>live<', seen.dom)
    assert seen.console == "", seen.console


def test_hostile_text_stays_text(server: DashboardServer, storage: Storage) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\">"
    store_run(storage, "r", losses={"stage1": lambda tokens: 5.0})
    storage.write_bytes(
        "runs/r/log/000001/000000.txt",
        f"{evil}</pre><script>document.title='broken'</script>\n".encode(),
    )
    run = storage.read_json("runs/r/run.json")
    run["recipe"] |= {"recipe": evil, "description": evil}
    run["recipe"]["stages"]["stage1"]["mixture"] = {evil: 1.0}
    storage.write_json("runs/r/run.json", run)
    for path, title in (("", "ncp runs"), ("runs/r", "r - ncp")):
        seen = visit(server.url + path, seconds=4)
        assert f"<title>{title}</title>" in seen.dom and "<img" not in seen.dom
        assert seen.console == "", seen.console


def test_a_report_file_obeys_its_own_policy(storage: Storage, tmp_path: Path) -> None:
    store_run(
        storage,
        "r",
        losses={"stage1": lambda tokens: 5.0, "stage2": lambda tokens: 4.0},
        evaluations={"stage1": {}},
    )
    page = tmp_path / "report.html"
    page.write_text(render_page([run_report(storage, "r")]))
    seen = visit(page.as_uri())
    assert "Next-token loss" in seen.dom and seen.console == "", seen.console
