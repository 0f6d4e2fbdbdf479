"""Pre-flight: what would hang for ever is a message first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from curriculum.load import load_recipe
from curriculum.schema import RuntimeSpec
from jobs.preflight import (
    PreflightError,
    check_resources,
    check_shared_storage,
    check_step_fits,
    checkpoint_warning,
    worker_capacity,
    write_bandwidth,
)
from pipeline.storage import Storage

RUNTIME = RuntimeSpec(num_workers=2, cpus_per_worker=0.5)


def test_workers_that_fit_are_fine() -> None:
    check_resources({"CPU": 2.0}, RUNTIME)
    check_resources({"CPU": 64.0, "GPU": 8.0}, replace(RUNTIME, num_workers=8, gpus_per_worker=1.0))


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (
            replace(RUNTIME, num_workers=5),
            r"cpus_per_worker: 5 workers x 0\.5 CPU = 2\.5, the cluster has 2; lower",
        ),
        (replace(RUNTIME, gpus_per_worker=1.0), "gpus_per_worker: 2 workers x 1 GPU = 2, the cluster has 0"),
        (replace(RUNTIME, staging_cpus_per_task=3.0), "staging_cpus_per_task: 3, the cluster has 2 CPUs"),
    ],
)
def test_workers_that_could_never_be_placed_are_refused(runtime: RuntimeSpec, message: str) -> None:
    with pytest.raises(PreflightError, match=message):
        check_resources({"CPU": 2.0}, runtime)


def test_a_local_directory_is_fine_on_one_host_and_object_storage_on_many(tmp_path: Path) -> None:
    two_nodes_one_host = [{"NodeManagerHostname": "a"}, {"NodeManagerHostname": "a"}]
    check_shared_storage(Storage(str(tmp_path)), two_nodes_one_host)
    check_shared_storage(Storage("memory://x"), [{"NodeManagerHostname": "a"}, {"NodeManagerHostname": "b"}])


def test_an_elastic_stage_needs_room_for_its_minimum_only() -> None:
    check_resources({"CPU": 2.0}, replace(RUNTIME, num_workers=(2, 64)))
    with pytest.raises(PreflightError, match=r"5 workers x 0\.5 CPU"):
        check_resources({"CPU": 2.0}, replace(RUNTIME, num_workers=(5, 64)))


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
        {"NodeManagerHostname": "rich", "Resources": {"CPU": 4.0, "memory": 64.0}},
        {"NodeManagerHostname": "poor", "Resources": {"CPU": 1.0, "memory": 8.0}},
        {"NodeManagerHostname": "head", "Resources": {"memory": 1.0}},
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
    assert checkpoint_warning(load_recipe("olmo3-7b-ncp"), 1.0) is None  # nothing is known of a step's time
    storage = Storage(str(tmp_path))
    assert write_bandwidth(storage) > 0 and storage.keys("") == []
