"""The manifests of engines on several machines ask for what the program, its agents and its image have."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pagewire.ipc.cluster_keys import CLUSTER_KEY_VARIABLE
from pagewire.version import __version__
from tests.support.manifests import DEPLOY, started

KUBERNETES = DEPLOY / "kubernetes"


def documents(name: str) -> dict[str, Any]:
    text = (KUBERNETES / name).read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize(("template", "index"), [("leaderTemplate", 0), ("workerTemplate", 1)])
def test_each_pod_of_a_group_is_a_host_of_the_same_engine(template: str, index: int) -> None:
    group = documents("several-hosts.yaml")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    (container,) = group[template]["spec"]["containers"]
    starts = started(
        container["args"],
        LWS_GROUP_SIZE=str(group["size"]),
        LWS_WORKER_INDEX=str(index),
        LWS_LEADER_ADDRESS="pagewire-large-0.pagewire-large",
    )
    parallel = starts.engine.parallel
    assert (parallel.nnodes, parallel.node_rank) == (group["size"], index)
    gpus = int(
        container["resources"]["limits"].get("nvidia.com/gpu", container["resources"]["requests"]["nvidia.com/gpu"])
    )
    assert parallel.mesh.world_size == gpus * group["size"]
    assert CLUSTER_KEY_VARIABLE in {variable["name"] for variable in container["env"]}
    assert container["image"].endswith(f":{__version__}")


def test_only_the_leader_is_asked_whether_it_serves() -> None:
    group = documents("several-hosts.yaml")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    (leader,), (worker,) = (group[template]["spec"]["containers"] for template in ("leaderTemplate", "workerTemplate"))
    ports = {port["name"]: port["containerPort"] for port in leader["ports"]}
    parallel = started(leader["args"], LWS_GROUP_SIZE="2", LWS_WORKER_INDEX="0").engine.parallel
    assert ports == {"http": 8000, "hosts": parallel.master_port}
    assert [leader[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")] == [
        "/health",
        "/health",
        "/live",
    ]
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & worker.keys()
    assert leader["volumeMounts"] == worker["volumeMounts"]


def test_what_ray_places_fits_what_its_workers_have() -> None:
    cluster, deployment = (documents("ray.yaml")[kind] for kind in ("RayCluster", "Deployment"))
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    join, name, command, *args = server["args"]
    parallel = started(args).engine.parallel
    assert (parallel.distributed_executor_backend, name, command) == ("ray", "pagewire", "serve")
    assert f"{cluster['metadata']['name']}-head-svc:6379" in join  # the name that KubeRay gives
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert parallel.mesh.world_size == workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "raylet": int(workers["rayStartParams"]["node-manager-port"])
    }
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert {server["image"], container["image"], head["image"]} == {f"pagewire-ray:{__version__}"}


@pytest.mark.parametrize(
    ("name", "pods"),
    [
        ("several-hosts.yaml", [("LeaderWorkerSet", "spec.leaderWorkerTemplate.leaderTemplate")]),
        ("ray.yaml", [("Deployment", "spec.template")]),
    ],
)
def test_the_service_finds_the_pod_that_serves_and_no_other(name: str, pods: list[tuple[str, str]]) -> None:
    found = documents(name)
    ((kind, path),) = pods
    template = found[kind]
    for part in path.split("."):
        template = template[part]
    selector = found["Service"]["spec"]["selector"]
    assert selector == {key: template["metadata"]["labels"][key] for key in selector}
    assert "role" in selector
    (pods_of_policy,) = [found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    assert pods_of_policy.items() <= template["metadata"]["labels"].items()
