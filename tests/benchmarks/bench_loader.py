"""The loader: tokens per second from the page cache, and how soon the first batch of a six-trillion-token stage is there.

    python -m tests.benchmarks.bench_loader

Rates: one process, one thread, sequence length 8192, real tokens of the standard library's sources repeated to a few
shards of the default size; every batch read twice before, so that its pages are cached. Contenders take turns in one
process, so that other load hits all alike; rates are medians, of wall seconds and of CPU seconds, which other load
disturbs least. `bare slices` copies as many windows out of one `numpy.memmap` into int64 tensors with shifted labels, in the
order of the file and without checksums: what no loader can beat.

Start: a manifest of 177,000 shards (six trillion tokens) whose rows all name one real shard; in a fresh process, with the
check of every shard's size against one listing, at step 0 and at step 1,000,000. Memory is the growth of the peak above
the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipeline.data.builtin import stdlib_code
from pipeline.data.counters import Counters
from pipeline.data.loader import WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.shards import ShardBuffer, ShardEntry, map_tokens, shard_schema, write_shard
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.storage import Storage

SEQUENCE_LENGTH = 8192
SHARD_TOKENS = 32 << 20
SHARDS = 3
STAGE_SHARDS = 177_000
GLOBAL_BATCH_TOKENS = 4 << 20
WORLD_SIZE = 8
MICRO_BATCH_SIZE = 2
LATE_STEP = 1_000_000
OUTPUT = "shards"


def write_shards(storage: Storage) -> Manifest:
    """Shards of the default size full of real tokens, with documents as they are."""
    texts = [document["text"] for document in stdlib_code()]
    tokenizer = Tokenizer(train_bpe(texts[:400], 8192))
    documents = [np.asarray(ids, dtype=np.uint32) for ids in tokenizer.encode_batch(texts)]
    documents = [np.append(ids, np.uint32(tokenizer.eos_id)) for ids in documents if len(ids)]
    schema = shard_schema(tokenizer.sha256, tokenizer.eos_id)
    entries, counters, number = [], Counters(), 0
    for shard in range(SHARDS):
        buffer = ShardBuffer("code", SHARD_TOKENS)
        while buffer.tokens < SHARD_TOKENS:
            buffer.append(documents[number % len(documents)], f"code.jsonl:{number}", 1)
            number += 1
        entries.append(write_shard(storage, OUTPUT, f"shards/g00000-s{shard:03d}.arrow", buffer, schema))
    counters.tokens_written = sum(entry.tokens for entry in entries)
    manifest = Manifest(
        source="code",
        output=OUTPUT,
        tokenizer=tokenizer.sha256,
        eos_id=tokenizer.eos_id,
        table=Manifest.of_shards(entries),
        heldout=(),
        counters=counters,
    )
    manifest.save(storage)
    return manifest


def write_large_manifest(storage: Storage, output: str, manifest: Manifest) -> None:
    """A stage of 177,000 shards, all of which are the first one."""
    first = manifest.shard(0)
    columns = {
        name: pa.array([getattr(first, name)]).take(pa.array(np.zeros(STAGE_SHARDS, dtype=np.int64)))
        for name in manifest.table.column_names
    }
    table = pa.table(columns, schema=manifest.table.schema)
    Path(storage.path(f"{output}/shards")).mkdir(parents=True)
    os.link(storage.path(f"{OUTPUT}/{first.key}"), storage.path(f"{output}/{first.key}"))
    replace(manifest, output=output, table=table).save(storage)


def open_loader(storage: Storage, output: str) -> WindowLoader:
    return WindowLoader(
        storage=storage,
        outputs={"code": output},
        weights={"code": 1.0},
        block=65_536,
        seed=1,
        sequence_length=SEQUENCE_LENGTH,
        global_batch_tokens=GLOBAL_BATCH_TOKENS,
    )


def start_up(url: str, output: str, step: int) -> None:
    """In a process of its own: seconds to the first batch at `step` and the growth of the peak, as JSON."""
    before = peak_kib()
    started = time.perf_counter()
    loader = open_loader(Storage(url), output)
    batch = loader.batch(step, 0, WORLD_SIZE * 64, MICRO_BATCH_SIZE)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "mib": (peak_kib() - before) / 1024, "rows": batch[0].real}))


def peak_kib() -> int:
    """Peak resident memory of this process; getrusage would count that of the process it was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def ours(storage: Storage) -> Callable[[int], int]:
    loader = open_loader(storage, OUTPUT)

    def batch(step: int) -> int:
        return sum(
            micro.real * SEQUENCE_LENGTH for micro in loader.batch(step, 0, WORLD_SIZE, MICRO_BATCH_SIZE)
        )

    return batch


def bare_slices(storage: Storage, entry: ShardEntry) -> Callable[[int], int]:
    tokens = map_tokens(Path(storage.path(f"{OUTPUT}/{entry.key}")), entry)
    rows = GLOBAL_BATCH_TOKENS // SEQUENCE_LENGTH // WORLD_SIZE

    def batch(step: int) -> int:
        for row in range(0, rows, MICRO_BATCH_SIZE):
            first = (
                (step * rows + row) * SEQUENCE_LENGTH % (SHARD_TOKENS - MICRO_BATCH_SIZE * SEQUENCE_LENGTH)
            )
            window = tokens[first : first + MICRO_BATCH_SIZE * SEQUENCE_LENGTH].reshape(MICRO_BATCH_SIZE, -1)
            input_ids = torch.from_numpy(window.astype(np.int64))
            labels = torch.full_like(input_ids, -100)
            labels[:, :-1] = input_ids[:, 1:]
        return rows * SEQUENCE_LENGTH

    return batch


def rates(
    contenders: dict[str, Callable[[int], int]], rounds: int, steps: int
) -> dict[str, tuple[float, float]]:
    """Median Mtok per wall and per CPU second of each."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, batch in contenders.items():
            wall, cpu, tokens = time.perf_counter(), time.process_time(), 0
            for step in range(steps):
                tokens += batch(step)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:  # the first turn fills the page cache
                found[name].append((tokens / wall / 1e6, tokens / cpu / 1e6))
    return {
        name: (statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows))
        for name, rows in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.start:
        start_up(arguments.start[0], arguments.start[1], int(arguments.start[2]))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        storage = Storage(scratch)
        manifest = write_shards(storage)
        found = rates(
            {"ours": ours(storage), "bare slices": bare_slices(storage, manifest.shard(0))},
            arguments.rounds,
            arguments.steps,
        )
        write_large_manifest(storage, "large", manifest)
        starts = {}
        for step in (0, LATE_STEP):
            command = [sys.executable, "-m", "tests.benchmarks.bench_loader", "--start", scratch, "large"]
            runs = []
            for _ in range(3):
                done = subprocess.run([*command, str(step)], capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            starts[step] = runs
    share = GLOBAL_BATCH_TOKENS // WORLD_SIZE
    print("# The loader\n")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}; one thread, sequence length {SEQUENCE_LENGTH:,}, "
        f"{share:,} tokens a step and rank, {SHARDS} shards of {SHARD_TOKENS >> 20}Mi tokens in the page cache\n"
    )
    print("| contender | Mtok/s | Mtok/CPU-s |\n|---|---:|---:|")
    for name, (wall, cpu) in found.items():
        print(f"| {name} | {wall:.1f} | {cpu:.1f} |")
    print(f"\nFirst batch of a stage of {STAGE_SHARDS:,} shards (goal: under 1 s and 200 MB):\n")
    print("| at step | seconds (median of 3) | MiB above imports (largest) |\n|---:|---:|---:|")
    for step, runs in starts.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        print(f"| {step:,} | {seconds:.2f} | {max(run['mib'] for run in runs):.0f} |")


if __name__ == "__main__":
    main()
