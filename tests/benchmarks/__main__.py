"""Run the benchmarks and keep their newest tables: `python -m tests.benchmarks [NAME ...]`.

Each `bench_NAME.py` measures side by side in one process and prints a markdown table with machine and versions; it is
kept as `docs/benchmarks/{NAME}.md` with the commit it was measured at.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TABLES = ROOT / "docs" / "benchmarks"


def main(names: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    for name in names:
        if name not in known:
            print(f"error: no benchmark {name!r}; known: {', '.join(known)}", file=sys.stderr)
            return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}"]
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(result.stdout, flush=True)
        if result.returncode == 0:
            TABLES.mkdir(parents=True, exist_ok=True)
            (TABLES / f"{name}.md").write_text(
                f"{result.stdout.rstrip()}\n\nMeasured at commit {_commit()}.\n"
            )
        failed += result.returncode != 0
    return 1 if failed else 0


def _commit() -> str:
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    return revision.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
