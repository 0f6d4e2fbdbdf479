"""The process that speaks to W&B, so that nothing W&B does or fails to do can hold a training: `tracking` starts it.

stdin: one JSON object with the arguments of wandb.init, then a row a line ({"step", "values"}); its end is the end of the
run. stdout: one line for everything a person should hear. An error ends the process with 1; who started it decides.
Standard library and wandb only, as it runs by its path.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, TextIO


def main() -> None:
    import wandb

    rows = own_pipes()
    settings: dict[str, Any] = json.loads(rows.readline())
    finish_seconds, init_seconds = settings.pop("finish_seconds"), settings.pop("init_seconds")

    def open_run(mode: str) -> Any:
        quiet = wandb.Settings(silent=True, init_timeout=init_seconds)
        arguments: dict[str, Any] = {**settings, "mode": mode}
        return wandb.init(**arguments, settings=quiet)

    try:
        run = open_run(settings["mode"])
    except Exception as error:
        if settings["mode"] == "offline":
            raise
        say(f"W&B refused ({type(error).__name__}: {error}); this attempt is kept offline")
        run = open_run("offline")
    for line in rows:
        row = json.loads(line)
        run.log(row["values"], step=row["step"])
    # Whoever started this may be gone already, so the end is bounded here too.
    timer = threading.Timer(finish_seconds, os._exit, (3,))
    timer.daemon = True
    timer.start()
    run.finish()


def own_pipes() -> TextIO:
    """The rows; and keep both pipes from the service that wandb starts, which would hold them open when this is killed."""
    rows = os.fdopen(os.dup(0), encoding="utf-8")
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return rows


def say(message: str) -> None:
    """One line to whoever started this."""
    print(" ".join(message.split()), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        say(f"W&B failed ({type(error).__name__}: {error})")
        os._exit(1)  # no handler of wandb's may wait for a service that is gone
    os._exit(0)
