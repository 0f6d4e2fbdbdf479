"""Pre-flight of memory and checkpoints: what could not work is refused, what would be slow is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from curriculum.load import load_recipe
from curriculum.schema import RuntimeSpec
from jobs.cluster.preflight import PreflightError
from jobs.cluster.preflight_costs import check_step_fits, checkpoint_warning, worker_capacity, write_bandwidth
from pipeline.storage import Storage

RUNTIME = RuntimeSpec(num_workers=2, cpus_per_worker=0.5)


def test_a_step_that_does_not_fit_is_refused_with_what_it_needs_and_a_close_one_is_a_warning() -> None:
    recipe = load_recipe("olmo3-7b-ncp", ["runtime.num_workers=8"])
    need = 67 * 2**30  # what ncp_model.memory says of 8 workers without recomputation
    assert check_step_fits(recipe, 80 * 2**30, "its GPU") is None
    warning = check_step_fits(recipe, int(need / 1.1), "its GPU")
    assert warning is not None and "needs about" in warning and "its GPU has" in warning
    with pytest.raises(
        PreflightError, match=r"runtime\.micro_batch_size: a step of stage1 .*activation_checkpointing"
    ):
        check_step_fits(recipe, need // 2, "its GPU")
    recomputed = load_recipe(
        "olmo3-7b-ncp", ["runtime.num_workers=8", "runtime.activation_checkpointing=true"]
    )
    assert check_step_fits(recomputed, need // 2, "its GPU") is None


def test_a_workers_share_is_that_of_the_poorest_node_that_could_hold_it() -> None:
    nodes = [
        {"Alive": True, "NodeManagerHostname": "rich", "Resources": {"CPU": 4.0, "memory": 64.0}},
        {"Alive": True, "NodeManagerHostname": "poor", "Resources": {"CPU": 1.0, "memory": 8.0}},
        {"Alive": True, "NodeManagerHostname": "head", "Resources": {"memory": 1.0}},
    ]
    runtime = replace(RUNTIME, num_workers=8)
    assert worker_capacity(nodes, runtime) == (4, "a worker's share of poor")
    assert worker_capacity(nodes[2:], runtime) == (0, "")


def test_checkpoints_that_take_longer_than_the_steps_between_them_are_a_warning(tmp_path: Path) -> None:
    overrides = ["runtime.num_workers=8", "runtime.peak_flops_per_worker=1e15"]
    recipe = load_recipe("olmo3-7b-ncp", [*overrides, "runtime.checkpoint_every_steps=1"])
    warning = checkpoint_warning(recipe, 50e6)  # 70 GiB at 400 MB/s are 187 s, a step about 64 s
    assert warning is not None and warning.endswith("use at least 3")
    assert checkpoint_warning(recipe, 1e9) is None
    unknown = load_recipe("olmo3-7b-ncp", ["runtime.peak_flops_per_worker=0"])
    assert checkpoint_warning(unknown, 1.0) is None  # nothing is known of a step's time
    storage = Storage(str(tmp_path))
    assert write_bandwidth(storage) > 0 and storage.keys("") == []
