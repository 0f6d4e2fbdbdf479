"""Tokens per second from JSONL.zst to token shards: our staging, datatrove, the dolma toolkit, `datasets.map`.

    python -m tests.benchmarks.bench_staging                        # 10 MB, 100 MB and 1 GB of text, one thread each
    python -m tests.benchmarks.bench_staging --megabytes 10 --rounds 1
    NCP_DOLMA=/path/to/bin/dolma python -m tests.benchmarks.bench_staging   # and the dolma toolkit, which pins numpy 1 (pip install dolma backports.zstd)

All contenders read the same files (the standard library's sources, repeated) with the same tokenizer, one process and
one thread each, in a process of their own and in turn, so that other load hits all alike. Rates are medians of tokens per
second without imports and start-up, which stand in a column of their own, and per CPU second, which other load disturbs least; memory is the peak of the process. `ray` is the
same staging by two Ray tasks; its start-up is that of Ray and of its workers. A gigabyte is read once by each, smaller
corpora `--rounds` times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import zstandard

from pipeline.data.builtin import stdlib_code
from pipeline.data.tokenizer import train_bpe

DOLMA = os.environ.get("NCP_DOLMA")
CONTENDERS = ("ours", "ray", "datatrove", *(("dolma",) if DOLMA else ()), "datasets")
VOCAB_SIZE = 8192
FILES = 4
LARGE_MEGABYTES = 1000


class Clock:
    """Wall and CPU seconds of this process and of its children that ended, since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), sum(os.times()[:4])

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self.wall, "cpu": sum(os.times()[:4]) - self.cpu}


def write_corpus(directory: Path, megabytes: int) -> None:
    """`megabytes` of real text as Dolma-format files; each repetition is marked, so that no cache knows a document."""
    documents = [document["text"] for document in stdlib_code() if document["text"].strip()]
    wanted, written, number = megabytes * 1_000_000, 0, 0
    (directory / "corpus").mkdir(parents=True)
    for part in range(FILES):
        with (
            open(directory / f"corpus/part-{part}.jsonl.zst", "wb") as file,
            zstandard.ZstdCompressor().stream_writer(file) as stream,
        ):
            while written < wanted * (part + 1) // FILES:
                text = f"# {number}\n{documents[number % len(documents)]}"
                stream.write(json.dumps({"id": str(number), "text": text}).encode() + b"\n")
                written += len(text)
                number += 1


def ours(directory: Path, output: Path) -> tuple[int, Clock]:
    from curriculum.schema import DataSpec, SourceSpec
    from pipeline.data.groups import plan_groups
    from pipeline.data.pins import make_pin
    from pipeline.data.tokenize_group import tokenize_group
    from pipeline.data.tokenizer import Tokenizer
    from pipeline.storage import Storage

    storage, data = Storage(str(output)), DataSpec()
    tokenizer = Tokenizer((directory / "tokenizer.json").read_bytes())
    pin = make_pin(storage, "corpus", SourceSpec(), str(directory / "corpus"))
    started = Clock()
    tokens = 0
    for group in plan_groups(pin, data):
        counters = tokenize_group(
            storage=storage,
            output="out",
            root=pin.open_root(storage),
            source="corpus",
            group=group,
            special_tokens="text",
            data=data,
            tokenizer=tokenizer,
        ).counters
        tokens += counters.tokens_written + counters.tokens_held_out
    return tokens, started


def ray(directory: Path, output: Path) -> tuple[int, Clock]:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=os.getcwd())
    import ray

    from curriculum.schema import DataSpec, SourceSpec
    from pipeline.data.pins import make_pin
    from pipeline.data.staging import stage_source
    from pipeline.storage import Storage

    storage, data = Storage(str(output)), DataSpec(group_bytes=1)
    storage.write_bytes("tokenizer.json", (directory / "tokenizer.json").read_bytes())
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
    )
    ray.data.range(2, override_num_blocks=2).map(
        lambda row: row, num_cpus=0.5
    ).materialize()  # workers are up
    pin = make_pin(storage, "corpus", SourceSpec(), str(directory / "corpus"))
    started = Clock()
    manifest = stage_source(
        storage=storage,
        output="out",
        pin=pin,
        spec=SourceSpec(),
        data=data,
        tokenizer_key="tokenizer.json",
        parallelism=2,
        cpus_per_task=0.5,
    )
    return manifest.tokens + manifest.heldout_tokens, started


def datatrove(directory: Path, output: Path) -> tuple[int, Clock]:
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.utils.logging import logger

    logger.remove()
    reader = JsonlReader(str(directory / "corpus"), compression="zstd")
    writer = DocumentTokenizer(
        str(output),
        tokenizer_name_or_path=str(directory / "tokenizer.json"),
        eos_token="<|endoftext|>",
        shuffle_documents=False,
        save_final_metadata=False,
        batch_size=1000,
    )
    started = Clock()
    writer.run(reader.run(None, 0, 1), 0, 1)
    return sum(path.stat().st_size for path in output.rglob("*.ds")) // 2, started


def dolma(directory: Path, output: Path) -> tuple[int, Clock]:
    """The toolkit's own command, from an environment of its own; its start-up is that of a dry run."""
    assert DOLMA is not None
    model = json.loads((directory / "tokenizer.json").read_text())
    model["model"]["merges"] = [
        " ".join(pair) for pair in model["model"]["merges"]
    ]  # as older libraries read them
    (directory / "tokenizer-dolma.json").write_text(json.dumps(model))
    command = [DOLMA, "tokens", "--documents", f"{directory}/corpus/*.zst", "--destination", str(output)]
    command += [
        "--tokenizer.name_or_path",
        str(directory / "tokenizer-dolma.json"),
        "--tokenizer.eos_token_id",
        "0",
    ]
    command += ["--tokenizer.pad_token_id", "1", "--dtype", "uint16", "--processes", "1", "--ring_size", "1"]
    before = Clock()
    subprocess.run([*command, "--dryrun"], check=True, capture_output=True)
    startup = before.read()
    started = Clock()
    subprocess.run(command, check=True, capture_output=True)
    started.wall += startup["seconds"]
    started.cpu += startup["cpu"]
    return sum(_last_boundary(path) for path in output.rglob("*.csv.gz")), started


def _last_boundary(path: Path) -> int:
    """Tokens of a dolma token file: it is laid out larger than it is filled, so its boundaries have to say."""
    with gzip.open(path, "rt") as rows:
        return max(int(row.split(",")[1]) for row in rows)


def datasets(directory: Path, output: Path) -> tuple[int, Clock]:
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|endoftext|>")
    files = sorted(str(path) for path in (directory / "corpus").iterdir())
    started = Clock()
    rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(output / "cache"))

    def encode(batch: dict) -> dict:
        encodings = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [[*encoding.ids, eos] for encoding in encodings]}

    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("uint32"))})
    done = rows.map(
        encode, batched=True, batch_size=1000, remove_columns=rows.column_names, features=features
    )
    done.save_to_disk(str(output / "out"))
    return sum(len(chunk.values) for chunk in done.data["input_ids"].chunks), started


def run_one(name: str, directory: Path, output: Path) -> None:
    """In a process of its own: print one JSON record."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    born = time.perf_counter()
    tokens, started = globals()[name](directory, output)
    spent = started.read()
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"tokens": tokens, **spent, "startup": started.wall - born, "mib": peak // 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one[0], Path(arguments.one[1]), Path(arguments.one[2]))
        return
    versions = ", ".join(f"{name} {version(name)}" for name in ("ray", "datatrove", "datasets", "tokenizers"))
    print("# Staging: from JSONL.zst to token shards\n")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, "
        f"Python {platform.python_version()}, {versions}; one thread each, `ray` two tasks\n"
    )
    print("| MB | contender | tokens | Mtok/s | vs best other | Mtok/CPU-s | start-up s | peak MiB |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for megabytes in arguments.megabytes:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            write_corpus(directory, megabytes)
            texts = (document["text"] for document in stdlib_code())
            (directory / "tokenizer.json").write_bytes(train_bpe(texts, VOCAB_SIZE))
            records: dict[str, list[dict]] = {name: [] for name in arguments.only}
            for number in range(arguments.rounds if megabytes < LARGE_MEGABYTES else 1):
                for name in arguments.only:
                    output = directory / f"{name}-{number}"
                    output.mkdir()
                    command = [sys.executable, "-m", "tests.benchmarks.bench_staging", "--one"]
                    done = subprocess.run(
                        [*command, name, scratch, str(output)],
                        capture_output=True,
                        text=True,
                    )
                    if done.returncode:
                        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
                    records[name].append(json.loads(done.stdout.splitlines()[-1]))
                    subprocess.run(["rm", "-rf", str(output)], check=True)
        rates = {
            name: statistics.median(record["tokens"] / record["seconds"] for record in found)
            for name, found in records.items()
        }
        others = [rate for name, rate in rates.items() if name not in ("ours", "ray")]
        for name, found in records.items():
            per_cpu = statistics.median(record["tokens"] / record["cpu"] for record in found) / 1e6
            cpu = "" if name == "ray" else f"{per_cpu:.3f}"  # Ray's workers are not our children
            against = f"{rates[name] / max(others):.2f}x" if others and name in ("ours", "ray") else ""
            print(
                f"| {megabytes} | {name} | {found[0]['tokens']:,} | {rates[name] / 1e6:.3f} | {against} | {cpu} | "
                f"{statistics.median(record['startup'] for record in found):.1f} | "
                f"{max(record['mib'] for record in found)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
