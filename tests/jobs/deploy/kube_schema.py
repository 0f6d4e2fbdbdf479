"""The part of KubeRay's `ray.io/v1` that the manifests use, as JSON Schema that admits nothing else.

Field names and types are those of KubeRay 1.5 (`RayJobSpec`, `RayClusterSpec`) and of Kubernetes' PodTemplateSpec. A field that
is not written down here is a spelling mistake until somebody looks it up.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def closed(required: dict[str, Schema], **optional: Schema) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": sorted(required),
        "additionalProperties": False,
    }


def each(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


STRING: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"}
START_PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
"""Ray is started with these as options, so that all are strings, numbers too."""

RESOURCES: Schema = {
    "type": "object",
    "properties": {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": QUANTITY},
    "required": ["cpu", "memory"],
    "additionalProperties": False,
}
CONTAINER = closed(
    {
        "name": NAME,
        "image": {"type": "string", "pattern": r"^[a-z0-9./-]+:[A-Za-z0-9._-]+$"},
        "resources": closed({"requests": RESOURCES, "limits": RESOURCES}),
    },
    env=each(
        closed({"name": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"}, "value": {"type": "string"}})
    ),
    envFrom=each(
        {
            "oneOf": [
                closed({"configMapRef": closed({"name": NAME})}),
                closed({"secretRef": closed({"name": NAME})}),
            ]
        }
    ),
    volumeMounts=each(closed({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}})),
)
POD = closed(
    {
        "spec": closed(
            {"containers": each(CONTAINER)},
            nodeSelector={"type": "object", "additionalProperties": STRING},
            tolerations=each(
                closed(
                    {
                        "key": STRING,
                        "operator": {"enum": ["Exists"]},
                        "effect": {"enum": ["NoSchedule", "NoExecute"]},
                    }
                )
            ),
            terminationGracePeriodSeconds=COUNT,
            volumes=each(
                closed(
                    {"name": NAME, "emptyDir": closed({"sizeLimit": QUANTITY}, medium={"enum": ["Memory"]})}
                )
            ),
        )
    }
)
CLUSTER_SPEC = closed(
    {
        "rayVersion": STRING,
        "authOptions": closed({"mode": {"enum": ["token"]}}),
        "headGroupSpec": closed({"rayStartParams": START_PARAMETERS, "template": POD}),
        "workerGroupSpecs": each(
            closed(
                {
                    "groupName": NAME,
                    "replicas": COUNT,
                    "minReplicas": COUNT,
                    "maxReplicas": COUNT,
                    "rayStartParams": START_PARAMETERS,
                    "template": POD,
                }
            )
        ),
    },
    enableInTreeAutoscaling=BOOLEAN,
    autoscalerOptions=closed(
        {}, idleTimeoutSeconds=COUNT, upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]}
    ),
)
JOB_SPEC = closed(
    {
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        "entrypoint": STRING,
        "rayClusterSpec": CLUSTER_SPEC,
    },
    backoffLimit=COUNT,
    shutdownAfterJobFinishes=BOOLEAN,
    ttlSecondsAfterFinished=COUNT,
)


def manifest(kind: str, spec: Schema) -> Schema:
    return closed(
        {
            "apiVersion": {"const": "ray.io/v1"},
            "kind": {"const": kind},
            "metadata": closed({"name": NAME}),
            "spec": spec,
        }
    )


SCHEMAS = {
    "rayjob.yaml": manifest("RayJob", JOB_SPEC),
    "raycluster.yaml": manifest("RayCluster", CLUSTER_SPEC),
}
