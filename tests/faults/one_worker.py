"""One training worker as a real process, without Ray: `python -m tests.faults.one_worker JOB.pickle GROUP_FILE`."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from pathlib import Path

import torch.distributed as dist

from jobs.training.train_loop import train


def main(job: Path, group: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(group), 1), rank=0, world_size=1)
    failures: list[BaseException] = []

    def loop() -> None:  # as under Ray Train, which runs the loop outside the main thread
        try:
            train(pickle.loads(job.read_bytes()))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    if failures:
        print(f"{type(failures[0]).__name__}: {failures[0]}", flush=True)
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
