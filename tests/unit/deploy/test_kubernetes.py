"""The manifests are valid, and ask for what the program and its image have."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import yaml

from pagewire.frontend.http.metric_help import HELP
from pagewire.version import __version__
from tests.support.manifests import DEPLOY, check_schema, check_serving_pod, documents, output_of

KUBERNETES = DEPLOY / "kubernetes"
SETS = ("base", "cpu", "autoscaled")


@functools.cache
def kustomized(name: str) -> str:
    return output_of("kubectl", "kustomize", str(KUBERNETES / name))


def pod_of(name: str) -> Any:
    return documents(kustomized(name))["Deployment"]["spec"]["template"]["spec"]


def own(name: str) -> Any:
    """A manifest of the autoscaled set as it is written."""
    return yaml.safe_load((KUBERNETES / "autoscaled" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SETS)
def test_set_is_valid_and_its_pod_asks_for_what_there_is(name: str) -> None:
    check_schema(kustomized(name))
    check_serving_pod(pod_of(name))


@pytest.mark.parametrize("path", sorted(KUBERNETES.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifest_of_several_machines_is_valid(path: Any) -> None:
    check_schema(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SETS)
def test_objects_of_a_set_find_each_other(name: str) -> None:
    found = documents(kustomized(name))
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    (port,) = found["Service"]["spec"]["ports"]
    (container,) = pod_of(name)["containers"]
    assert port["targetPort"] in {port["name"] for port in container["ports"]}
    (volume,) = [volume for volume in pod_of(name)["volumes"] if volume["name"] == "models"]
    assert volume["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert container["image"].endswith(f":{__version__}")


def test_cpu_set_asks_for_no_gpu_and_for_no_hub() -> None:
    starts = check_serving_pod(pod_of("cpu"))
    assert "nvidia" not in kustomized("cpu")
    assert starts.engine.model.model == "SmolLM2-135M-Instruct"


def test_autoscaled_set_is_scaled_by_a_metric_that_there_is() -> None:
    found = documents(kustomized("autoscaled"))
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    (metric,) = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]]
    (rule,) = own("prometheus-adapter-values.yaml")["rules"]["custom"]
    assert metric == rule["name"]["as"].replace("$1", "num_requests_waiting")
    assert rule["seriesQuery"].startswith("vllm:num_requests_waiting{")
    (trigger,) = own("keda.yaml")["spec"]["triggers"]
    assert "sum(vllm:num_requests_waiting{" in trigger["metadata"]["query"]
    assert "num_requests_waiting" in HELP


def test_autoscaled_set_can_be_updated_and_drained_without_a_gap() -> None:
    found = documents(kustomized("autoscaled"))
    deployment = found["Deployment"]["spec"]
    assert "replicas" not in deployment  # the autoscaler's to say
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    least = found["HorizontalPodAutoscaler"]["spec"]["minReplicas"]
    assert least > budget["maxUnavailable"] >= 1


def test_single_engine_leaves_its_volume_before_the_next_one_wants_it() -> None:
    found = documents(kustomized("base"))
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
