"""Kills at an exact durable write, in whichever process makes it: for tests of crash safety. Put on PYTHONPATH.

`NCP_CRASH_AT=WHO:WHEN:REGEX`: at the first write of a storage key that matches REGEX, `before` or `after` it, SIGKILL
goes to the `worker` that makes it or to the `driver` (the first process that came through here). Once: the file
`NCP_CRASH_ONCE` remembers. The driver's end is awaited in the writing process, so that it does nothing more.
"""

import importlib.abc
import importlib.machinery
import os
import re
import signal
import sys
import time

AT = os.environ.get("NCP_CRASH_AT", "")
os.environ.setdefault("NCP_CRASH_DRIVER", str(os.getpid()))


class _Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "pipeline.storage":
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is not None and found.loader is not None:
            load = found.loader.exec_module
            found.loader.exec_module = lambda module: (load(module), _patch(module.Storage))[0]
        return found


def _patch(storage):
    for name in ("create", "write_bytes"):
        setattr(storage, name, _crashing(getattr(storage, name)))


def _crashing(write):
    who, when, pattern = AT.split(":", 2)

    def crashing(self, key, data):
        here = re.search(pattern, key) is not None and not os.path.exists(os.environ["NCP_CRASH_ONCE"])
        if here and when == "before":
            _kill(who, key)
        result = write(self, key, data)
        if here and when == "after":
            _kill(who, key)
        return result

    return crashing


def _kill(who, key):
    with open(os.environ["NCP_CRASH_ONCE"], "x") as file:
        file.write(key)
    if who == "driver":
        os.kill(int(os.environ["NCP_CRASH_DRIVER"]), signal.SIGKILL)
        time.sleep(600)  # Ray ends the orphans
    os.kill(os.getpid(), signal.SIGKILL)


if AT:
    sys.meta_path.insert(0, _Patching())
