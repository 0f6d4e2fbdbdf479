"""Which tests run beside which (pytest-xdist): three lanes, so that what waits in one leaves the cores to the others.

Whole runs one after another in one worker, training and clusters of a test's own one after another in a second, pure tests
in whoever is free: of the first two kinds several at once would starve each other, and they share costly fixtures. (xdist's
own groups do nothing under pytest 9.2.)
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
RUNS = "whole runs"
TRAINING = "training and clusters"
_TRAINS = re.compile(r"tests\.training\b|\bray_session\b")
_STARTS = re.compile(r"tests\.(ncp_process|ray_cluster)\b")


@cache
def lane(file: str) -> str:
    """The lane of a test file, named from the repository's root: RUNS, TRAINING, or one of the file's own."""
    if _TRAINS.search((ROOT / file).read_text()):
        return TRAINING
    return RUNS if file.startswith("tests/faults/") else file


def starts_processes(file: str) -> bool:
    """Whether a test file starts commands, runs, clusters or training."""
    return lane(file) in (RUNS, TRAINING) or _STARTS.search((ROOT / file).read_text()) is not None


class SideBySide(LoadScopeScheduling):
    """A lane is one unit of work."""

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid.partition("::")[0])
