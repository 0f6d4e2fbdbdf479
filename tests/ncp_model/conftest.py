"""One thread (two are slower under load), and real process groups of gloo ranks."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

torch.set_num_threads(1)


def _rank_main(
    rank: int, world_size: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    function(rank, world_size, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    # Now and then torch aborts in the interpreter's shutdown, after the work is done ("terminate called without an
    # active exception", no Python frame left); what is tested here is over, so skip it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.fixture
def run_ranks() -> Callable[..., None]:
    """run_ranks(function, world_size, *arguments): function(rank, world_size, *arguments) on each of real ranks."""
    root = str(Path(__file__).parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)  # spawned ranks import the test module by name

    def run(function: Callable[..., Any], world_size: int, *arguments: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        spawn(_rank_main, (world_size, port, function, arguments), nprocs=world_size)

    return run
