"""The cluster files: every field is one that exists, the commands parse, and the nodes can hold the recipe."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from curriculum.load import load_recipe
from jobs.cluster.capacity import Demand, places
from jobs.cluster.preflight import training_demand
from tests.command_lines import parse_command
from tests.jobs.deploy.kube_schema import SCHEMAS

ROOT = Path(__file__).parent.parent.parent.parent
DEPLOY = ROOT / "jobs" / "deploy"
RECIPE = load_recipe("olmo3-7b-ncp")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


def pods(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Group -> pod spec; the head's group is `head`."""
    groups = {"head": cluster["headGroupSpec"]} | {
        group["groupName"]: group for group in cluster["workerGroupSpecs"]
    }
    return {name: group["template"]["spec"] for name, group in groups.items()}


@pytest.fixture(params=sorted(SCHEMAS))
def cluster(request: pytest.FixtureRequest) -> dict[str, Any]:
    content = read(request.param)
    jsonschema.validate(content, SCHEMAS[request.param])
    return content["spec"].get("rayClusterSpec", content["spec"])


def test_a_misspelt_field_is_noticed() -> None:
    content = read("rayjob.yaml")
    content["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="minReplica"):
        jsonschema.validate(content, SCHEMAS["rayjob.yaml"])


def test_both_manifests_have_the_same_nodes() -> None:
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"] == read("raycluster.yaml")["spec"]


def test_the_entrypoint_is_an_ncp_command_that_its_supervisor_may_start_again() -> None:
    spec = read("rayjob.yaml")["spec"]
    words = shlex.split(spec["entrypoint"])
    assert words[0] == "ncp"
    command, values = parse_command(words[1:])
    assert command == "run" and values["supervised"] and values["recipe"] == RECIPE.recipe
    assert load_recipe(values["recipe"], values["overrides"]).runtime.cluster_grows
    assert spec["backoffLimit"] > 0
    mounts = pods(spec["rayClusterSpec"])["gpu"]["containers"][0]["volumeMounts"]
    cache = load_recipe(values["recipe"], values["overrides"]).runtime.shard_cache_dir
    assert cache in [mount["mountPath"] for mount in mounts]


def test_the_head_has_a_driver_no_work_and_a_node_that_stays(cluster: dict[str, Any]) -> None:
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "tolerations" not in pods(cluster)["head"]
    for name, pod in pods(cluster).items():
        assert (name == "head") == ("ncp/preemptible" not in str(pod.get("tolerations")))


def test_the_nodes_hold_the_recipe(cluster: dict[str, Any]) -> None:
    nodes: dict[str, list[dict[str, Any]]] = {}
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        resources = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
        nodes[group["groupName"]] = [{"Alive": True, "Resources": resources}] * group["maxReplicas"]
    runtime = RECIPE.runtime
    assert places(nodes["gpu"], training_demand(runtime)) >= runtime.max_workers
    staging = Demand(count=runtime.staging_tasks, cpus=runtime.staging_cpus_per_task)
    assert places(nodes["staging"], staging) >= runtime.staging_tasks


def test_secrets_are_references_and_every_volume_exists(cluster: dict[str, Any]) -> None:
    for pod in pods(cluster).values():
        container = pod["containers"][0]
        assert {"configMapRef": {"name": "ncp-settings"}} in container["envFrom"]
        assert {"secretRef": {"name": "ncp-s3"}} in container["envFrom"]
        assert not [item for item in container["env"] if re.search("KEY|SECRET|TOKEN", item["name"])]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert [mount["name"] for mount in container["volumeMounts"]] == volumes


def test_one_image_one_ray() -> None:
    images = set(
        re.findall(r"image: (\S+)", "".join((DEPLOY / name).read_text() for name in [*SCHEMAS, LAUNCHER]))
    )
    assert len(images) == 1
    assert f"-t {images.pop()} " in (DEPLOY / "Dockerfile").read_text()
    for name in SCHEMAS:
        assert f'rayVersion: "{ray.__version__}"' in (DEPLOY / name).read_text()
    assert f"FROM rayproject/ray:{ray.__version__}-py311-gpu" in (DEPLOY / "Dockerfile").read_text()


def test_the_image_holds_every_package() -> None:
    copied = re.findall(r"^COPY --chown=ray:users (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    sources = {source for line in copied for source in line.split()}
    assert {"curriculum", "pipeline", "ncp_model", "jobs"} <= sources
    assert all((ROOT / source).exists() for source in sources)


LAUNCHER = "cluster-launcher.yaml"


def test_rays_own_schema_and_checks_accept_the_launcher_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read(LAUNCHER)
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(config, json.loads(schema.read_text()))
    validate_config(prepare_config(config))
    types = config["available_node_types"]
    assert set(types) == {"head", "gpu", "staging"}
    assert types["head"]["resources"]["CPU"] == 0 and "--num-cpus=0" in config["head_start_ray_commands"][1]
    assert "InstanceMarketOptions" not in types["head"]["node_config"]
    for name in ("gpu", "staging"):
        assert types[name]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert config["max_workers"] == sum(types[name]["max_workers"] for name in ("gpu", "staging"))
    demand = training_demand(RECIPE.runtime)
    node = {
        "Alive": True,
        "Resources": {key: float(value) for key, value in types["gpu"]["resources"].items()},
    }
    assert places([node] * types["gpu"]["max_workers"], demand) >= demand.count
    assert all(
        "RAY_AUTH_MODE=token" in config[f"{kind}_start_ray_commands"][1] for kind in ("head", "worker")
    )
    assert not os.path.isabs(config["file_mounts"]["/home/ray/.ray/auth_token"])
