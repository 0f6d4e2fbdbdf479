"""Who holds a lease: what cannot be seen is not gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pipeline.dag.holder import Holder
from tests.ncp_process import ROOT

HIDDEN = """
import json, os, subprocess, sys
from pipeline.dag.holder import Holder
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
holder = Holder(**json.loads(sys.argv[1]))
gone = Holder(**{**holder.record(), "pid": 4_000_000})
print(json.dumps([os.path.exists(f"/proc/{holder.pid}"), holder.gone(), gone.gone()]))
"""


def test_this_process_is_there_and_one_with_its_number_and_another_start_is_gone() -> None:
    here = Holder.here()
    assert not here.gone()
    assert Holder(**{**here.record(), "started": "1"}).gone()


def test_a_process_that_ended_is_gone() -> None:
    code = "import json; from pipeline.dag.holder import Holder; print(json.dumps(Holder.here().record()))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Holder(**json.loads(shown.stdout)).gone()


def test_a_process_of_another_user_that_proc_hides_is_not_gone() -> None:
    """A real /proc with hidepid=2, in a mount namespace of its own, seen by another user."""
    if os.geteuid() != 0:
        pytest.skip("mounting /proc takes root")
    seen = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", HIDDEN, json.dumps(Holder.here().record())],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if "mount" in seen.stderr or "unshare" in seen.stderr:
        pytest.skip(f"this machine mounts no /proc: {seen.stderr.splitlines()[-1]}")
    visible, living_is_gone, missing_is_gone = json.loads(seen.stdout)
    assert not visible and not living_is_gone and missing_is_gone


def test_a_process_that_may_not_be_asked_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above where no /proc can be mounted: nothing is read, and the kernel says that the PID is another user's."""
    from pipeline.dag import holder

    here = Holder.here()
    read = holder._read
    monkeypatch.setattr(holder, "_read", lambda path: "" if path.endswith("/stat") else read(path))
    assert not here.gone(), "signal 0 finds it"
    monkeypatch.setattr(os, "kill", lambda pid, number: (_ for _ in ()).throw(PermissionError()))
    assert not here.gone()
    monkeypatch.setattr(os, "kill", lambda pid, number: (_ for _ in ()).throw(ProcessLookupError()))
    assert here.gone()
