"""The chart renders to what Kubernetes takes, and refuses what it would not."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from pagewire.version import __version__
from tests.support.manifests import DEPLOY, Started, check_schema, check_serving_pod, documents, output_of, tool

CHART = DEPLOY / "helm" / "pagewire"
MANY = (
    "model=Qwen/Qwen3-8B",
    "gpus=4",
    "servedModelName=qwen",
    "extraArgs={--max-model-len=16k,--enable-lora}",
    "extraEnv[0].name=A,extraEnv[0].value=b",
    "secret.apiKey=k",
    "models.accessModes={ReadWriteMany}",
    "models.storageClass=nfs",
    "autoscaling.enabled=true",
    "podMonitor.enabled=true",
    "ingress.enabled=true,ingress.host=a.example,ingress.className=nginx,ingress.tlsSecret=t",
    "imagePullSecrets[0].name=r",
    "podLabels.a=b,podAnnotations.a=b,service.annotations.a=b,ingress.annotations.a=b,nodeSelector.a=b",
    "tolerations[0].operator=Exists",
    "runtimeClassName=nvidia,priorityClassName=high",
    "shutdownTimeout=300",
)


def rendered(*values: str) -> str:
    options = [part for value in values for part in ("--set", value)]
    return output_of("helm", "template", "mine", str(CHART), *options)


def refusal(*values: str) -> str:
    options = [part for value in values for part in ("--set", value)]
    done = subprocess.run([tool("helm"), "template", "mine", str(CHART), *options], capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


def checked(text: str) -> tuple[dict[str, Any], Started]:
    """The objects of a rendered chart, found to be valid and to fit together, and what its pod starts."""
    check_schema(text)
    found = documents(text)
    template = found["Deployment"]["spec"]["template"]
    assert found["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    return found, check_serving_pod(template["spec"])


def test_chart_passes_the_linter() -> None:
    output_of("helm", "lint", "--strict", str(CHART))


def test_version_is_the_programs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_defaults_run_the_packaged_model_on_a_cpu() -> None:
    found, starts = checked(rendered())
    assert found.keys() == {"PersistentVolumeClaim", "Service", "Deployment"}
    assert starts.engine.model.model == "SmolLM2-135M-Instruct"
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_every_value_reaches_what_it_is_for() -> None:
    found, starts = checked(rendered(*MANY))
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Secret", "Ingress", "PodMonitor"} <= found.keys()
    assert (starts.engine.model.model, starts.engine.model.served_model_name) == ("Qwen/Qwen3-8B", ("qwen",))
    assert starts.engine.parallel.tensor_parallel_size == 4
    assert starts.engine.lora.enable_lora
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 305
    assert {"name": "A", "value": "b"} in pod["containers"][0]["env"]
    assert (pod["runtimeClassName"], pod["priorityClassName"], pod["nodeSelector"]) == ("nvidia", "high", {"a": "b"})
    references = [variable["valueFrom"]["secretKeyRef"]["name"] for variable in pod["containers"][0]["env"][:2]]
    assert set(references) == {found["Secret"]["metadata"]["name"]}


def host_resources(*values: str) -> dict[str, Any]:
    (container,) = documents(rendered(*values))["Deployment"]["spec"]["template"]["spec"]["containers"]
    resources: dict[str, Any] = container["resources"]
    return resources


def test_pod_on_a_gpu_has_what_the_manifests_give_it() -> None:
    manifests = documents(output_of("kubectl", "kustomize", str(DEPLOY / "kubernetes" / "base")))
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert host_resources("gpus=1") == container["resources"]


def test_resources_that_are_given_stand_beside_the_others() -> None:
    assert host_resources("resources.limits.memory=2Gi") == {
        "requests": {"cpu": "2", "memory": "2Gi"},
        "limits": {"memory": "2Gi"},
    }
    assert host_resources("resources.requests.memory=1Gi")["requests"] == {"cpu": "2", "memory": "1Gi"}


def test_ingress_takes_a_wildcard() -> None:
    found, _ = checked(rendered("ingress.enabled=true,ingress.host=*.example.com,ingress.tlsSecret=t"))
    assert found["Ingress"]["spec"]["tls"][0]["hosts"] == [found["Ingress"]["spec"]["rules"][0]["host"]]


def test_keda_takes_the_place_of_the_autoscaler() -> None:
    found, _ = checked(rendered("autoscaling.enabled=true", "autoscaling.by=keda", "models.enabled=false"))
    assert "HorizontalPodAutoscaler" not in found
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]


def test_user_can_be_left_to_the_cluster() -> None:
    found, _ = checked(rendered("podSecurityContext=null"))
    assert "securityContext" not in found["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("modle=m", "modle"),
        ("gpus=-1", "gpus"),
        ("models.size=much", "size"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("replicas=2", "ReadWriteMany"),
        ("autoscaling.enabled=true", "ReadWriteMany"),
        ("autoscaling.enabled=true,models.enabled=false,autoscaling.maxReplicas=1", "maxReplicas 1"),
        ("ingress.enabled=true", "ingress.host"),
    ],
)
def test_what_could_not_work_is_refused_by_name(values: str, named: str) -> None:
    assert named in refusal(values)


def test_schema_and_templates_know_the_same_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == values.keys()  # helm adds `global` to a subchart
    templates = "".join(path.read_text(encoding="utf-8") for path in CHART.rglob("templates/**/*") if path.is_file())
    used = set(re.findall(r"\.Values\.(\w+(?:\.\w+)?)", templates))
    for name, value in values.items():
        whole = schema["properties"][name]
        if "properties" in whole:
            assert whole["properties"].keys() == value.keys()
            assert {f"{name}.{key}" for key in value} <= used, name
        else:
            assert name in {path.partition(".")[0] for path in used}, name
