"""A run that is killed at an exact durable write (tests/faults/crash/sitecustomize.py)."""

from __future__ import annotations

import os
from pathlib import Path

from tests.ncp_process import ROOT, NcpProcess


def crash_at(storage: Path, point: str, *arguments: str) -> tuple[int, str, str]:
    """Run `ncp` with a crash point `WHO:WHEN:REGEX`: (exit code, output, the key at which it was killed, if it was)."""
    once = storage.parent / "crashed-at"
    changes = {
        "NCP_CRASH_AT": point,
        "NCP_CRASH_ONCE": str(once),
        "PYTHONPATH": f"{ROOT / 'tests' / 'faults' / 'crash'}{os.pathsep}{ROOT}",
    }
    process = NcpProcess(storage, *arguments, environment=changes)
    code, output = process.finish()
    return code, output, once.read_text() if once.exists() else ""
