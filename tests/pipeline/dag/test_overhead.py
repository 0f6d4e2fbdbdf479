"""What a step costs in storage calls, whatever the size of the graph: the bound behind the engine's speed.

Times are measured by `tests/benchmarks/bench_dag.py`; here only calls are counted, which no machine's load changes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.dag.plan import make_plan
from pipeline.dag.runner import run_steps
from pipeline.dag.step import Step
from pipeline.storage import Storage


class CountingStorage(Storage):
    """Counts calls by name."""

    def __init__(self, url: str):
        super().__init__(url)
        self.calls: Counter[str] = Counter()

    def exists(self, key: str) -> bool:
        self.calls["exists"] += 1
        return super().exists(key)

    def read_bytes(self, key: str) -> bytes:
        self.calls["read"] += 1
        return super().read_bytes(key)

    def children(self, prefix: str) -> list[str]:
        self.calls["list"] += 1
        return super().children(prefix)

    def write_bytes(self, key: str, data: bytes) -> None:
        self.calls["write"] += 1
        super().write_bytes(key, data)

    def create(self, key: str, data: bytes) -> bool:
        self.calls["create"] += 1
        return super().create(key, data)


def _chain_of(width: int, count: int) -> list[Step]:
    """`width` chains side by side."""
    return [
        Step(
            name=f"s{i}",
            kind="work",
            version=1,
            identity={"i": i},
            needs=(f"s{i - width}",) if i >= width else (),
        )
        for i in range(count)
    ]


def _run(storage: Storage, steps: list[Step], work: Any = lambda context: {}) -> None:
    assert run_steps(steps, storage, {"work": work}, run="r", on_event=lambda event: None, parallel=4).ok


@pytest.mark.parametrize("count", [20, 200])
def test_a_fresh_step_costs_six_storage_calls(tmp_path: Path, count: int) -> None:
    """Is there a receipt, who holds it; lease, identity, seal and receipt are created. Nothing is overwritten."""
    storage = CountingStorage(str(tmp_path))
    _run(storage, _chain_of(4, count))
    assert storage.calls == {"exists": count, "list": count, "create": 4 * count}


@pytest.mark.parametrize("count", [20, 200])
def test_a_step_that_is_done_costs_one(tmp_path: Path, count: int) -> None:
    _run(Storage(str(tmp_path)), _chain_of(4, count))
    storage = CountingStorage(str(tmp_path))
    _run(storage, _chain_of(4, count))
    assert storage.calls == {"exists": count}


@pytest.mark.parametrize("count", [20, 200])
def test_planning_costs_one_call_a_step_and_one_listing(tmp_path: Path, count: int) -> None:
    steps = _chain_of(4, count)
    storage = CountingStorage(str(tmp_path))
    make_plan(steps, storage)
    assert storage.calls == {"list": 1, "exists": count}
    _run(Storage(str(tmp_path)), steps)
    storage.calls.clear()
    assert {row.state for row in make_plan(steps, storage)} == {"done"}
    assert storage.calls == {"list": 1, "exists": count}
