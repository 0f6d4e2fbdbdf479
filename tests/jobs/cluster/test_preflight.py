"""Pre-flight: what would hang for ever is a message first."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from curriculum.schema import RuntimeSpec
from jobs.cluster.preflight import PreflightError, check_places, check_resources, check_shared_storage
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


def test_enough_in_all_but_not_on_any_node_is_refused() -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 1.5}}] * 2
    check_places(nodes, replace(RUNTIME, num_workers=2, cpus_per_worker=1.0))
    with pytest.raises(PreflightError, match=r"num_workers: 3 x 1 CPU needed, each on one node; the 2 nodes"):
        check_places(nodes, replace(RUNTIME, num_workers=3, cpus_per_worker=1.0))


def test_a_local_directory_is_fine_on_one_host_and_object_storage_on_many(tmp_path: Path) -> None:
    two_nodes_one_host = [{"NodeManagerHostname": socket.gethostname()}] * 2
    check_shared_storage(Storage(str(tmp_path)), two_nodes_one_host)
    check_shared_storage(Storage("memory://x"), [{"NodeManagerHostname": "a"}, {"NodeManagerHostname": "b"}])


def test_an_evaluation_beside_training_has_to_fit_next_to_it() -> None:
    eight = replace(RUNTIME, num_workers=8, gpus_per_worker=1.0)
    check_resources({"CPU": 64.0, "GPU": 9.0}, eight, beside=True)
    with pytest.raises(
        PreflightError, match=r"beside needs 1 GPU next to the 8 .* lower runtime.num_workers to 7"
    ):
        check_resources({"CPU": 64.0, "GPU": 8.0}, eight, beside=True)


def test_an_elastic_stage_needs_room_for_its_minimum_only() -> None:
    check_resources({"CPU": 2.0}, replace(RUNTIME, num_workers=(2, 64)))
    with pytest.raises(PreflightError, match=r"5 workers x 0\.5 CPU"):
        check_resources({"CPU": 2.0}, replace(RUNTIME, num_workers=(5, 64)))
