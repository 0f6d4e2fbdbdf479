"""Peak memory of a rank: one process that holds all against ranks that hold shards, the model being made on meta.

    python -m tests.benchmarks.bench_memory
    python -m tests.benchmarks.bench_memory --width 512 --ranks 1 2 4

Each rank is a process. Its growth is counted from when torch is loaded and the process group stands, to the highest point
during construction, initialisation, a whole step and the gradients of the next (Muon and AdamW, float32, one short window):
VmHWM, all of it.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.multiprocessing as mp

from ncp_model.flops import total_parameters
from ncp_model.memory import step_memory
from tests.benchmarks.bench_model import ncp_spec
from tests.memory import growth_worker
from tests.training import small_job


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print a markdown page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--layers", type=int, nargs=3, default=[8, 4, 8], help="encoder, concept, decoder")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=64)
    settings = parser.parse_args(argv)
    encoder, concept, decoder = settings.layers
    spec = replace(
        ncp_spec(settings.width, settings.tokens),
        encoder_layers=encoder,
        concept_layers=concept,
        decoder_layers=decoder,
    )
    print("# Peak memory of a rank, sharded against whole\n")
    print(
        f"{platform.machine()} CPU, torch {torch.__version__}, Python {platform.python_version()}; hidden {settings.width}, "
        f"layers {encoder}/{concept}/{decoder}, {total_parameters(spec) / 1e6:.0f}M parameters, {settings.tokens} tokens a rank.\n"
    )
    print(
        "| ranks | peak growth of the largest rank, MiB | against one rank | estimate (`ncp_model.memory`), MiB |"
    )
    print("|---:|---:|---:|---:|", flush=True)
    whole = 0.0
    for ranks in settings.ranks:
        with tempfile.TemporaryDirectory(prefix="ncp-bench-memory-") as folder:
            job = small_job(folder, "memory", model=spec)
            store = Path(folder) / "group"
            mp.spawn(growth_worker, args=(ranks, store, job, settings.tokens), nprocs=ranks)  # type: ignore[attr-defined]
            growth = max(int(store.with_suffix(f".rank{rank}").read_text()) for rank in range(ranks))
        whole = whole or growth
        estimate = step_memory(
            spec,
            job.stage.optimizer,
            sequence_length=settings.tokens,
            micro_batch_size=1,
            shards=ranks,
        ).total
        print(
            f"| {ranks} | {growth / 2**20:.0f} | {growth / whole:.2f} | {estimate / 2**20:.0f} |", flush=True
        )
    print("\nGoal: at most 0.65 with two ranks.")


if __name__ == "__main__":
    main()
