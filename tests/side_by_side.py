"""Which tests run beside which (pytest-xdist): real processes one after another in one worker, pure tests in the others.

Tests that start whole runs, clusters or training would starve each other on two cores and share costly fixtures, and they
mostly wait; pure tests fill the rest. (xdist's own groups do nothing under pytest 9.2.)
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
PROCESSES = "real processes"
_STARTS = re.compile(r"tests\.(ncp_process|ray_cluster|training)\b|\bray_session\b")


@cache
def starts_processes(file: str) -> bool:
    """Whether a test file, named from the repository's root, starts runs, clusters or training."""
    return file.startswith("tests/faults/") or _STARTS.search((ROOT / file).read_text()) is not None


class SideBySide(LoadScopeScheduling):
    """All files of real processes are one unit of work; every other file is one of its own."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return PROCESSES if starts_processes(file) else file
