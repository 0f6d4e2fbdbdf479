"""A real headless Chromium: what a reader's browser makes of a page, and what its console says about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_SECONDS = 180


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The document after scripts have run, and the console."""

    dom: str
    console: str


def browser() -> str | None:
    """`NCP_CHROMIUM`, or the first known name on PATH."""
    return os.environ.get("NCP_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


needs_browser = pytest.mark.skipif(
    browser() is None, reason=f"no browser: none of {', '.join(NAMES)} on PATH, and NCP_CHROMIUM is not set"
)


def visit(url: str, *, seconds: float = 1.0, width: int = 1200) -> Seen:
    """Open `url`, let `seconds` of the page's own (virtual) time pass, and look."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="ncp-chromium-") as profile:
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", f"--window-size={width},900", "--enable-logging=stderr", "--v=0",
            f"--virtual-time-budget={int(1000 * seconds)}", "--dump-dom", url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(dom=done.stdout, console="\n".join(lines))
