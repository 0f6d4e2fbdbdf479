"""Two users and one store: the group's rights decide, not the umask of who came first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ncp_process import ROOT

GROUP = 4711
USERS = (4712, 4713)
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
WRITER = """
import os, sys
root, user, group, umask, key = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
from pipeline.storage import Storage
os.setgroups([]); os.setgid(group); os.setuid(user); os.umask(umask)
store = Storage(root)
store.probe()
store.write_json(key, {"user": user})
store.create("runs/log", b"1")
print([store.read_json(name)["user"] for name in store.keys("steps")], store.children(""))
"""


def _as(user: int, umask: int, root: Path, key: str) -> subprocess.CompletedProcess[str]:
    arguments = [str(root), str(user), str(GROUP), str(umask), key]
    return subprocess.run(
        [sys.executable, "-c", WRITER, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def _store(tmp_path: Path, mode: int) -> Path:
    for folder in (tmp_path, *tmp_path.parents[:3]):  # one more where tests run side by side
        os.chmod(folder, 0o755)
    store = tmp_path / "store"
    store.mkdir()
    os.chown(store, USERS[0], GROUP)
    store.chmod(mode)
    return store


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_one_member_of_a_group_writes_the_others_read_and_add_to(umask: int, tmp_path: Path) -> None:
    store = _store(tmp_path, 0o2770)
    first = _as(USERS[0], umask, store, "steps/s/a.json")
    assert first.returncode == 0, first.stderr
    second = _as(USERS[1], umask, store, "steps/s/b.json")
    assert second.returncode == 0, second.stderr
    assert f"[{USERS[0]}, {USERS[1]}] ['runs', 'steps']" in second.stdout


def test_a_store_that_is_not_shared_names_its_folder_owner_and_the_way_in(tmp_path: Path) -> None:
    store = _store(tmp_path, 0o755)
    assert _as(USERS[0], 0o022, store, "steps/s/a.json").returncode == 0
    second = _as(USERS[1], 0o022, store, "steps/s/b.json")
    assert second.returncode != 0
    line = second.stderr.strip().splitlines()[-1]
    assert str(store) in line and f"belongs to user {USERS[0]}" in line and "umask is 022" in line
    assert "chmod -R g+rwX" in line
