"""What the tests of deploy/ ask of any pod, however it was written: as a manifest, by kustomize, by the chart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pagewire.frontend.cli.main import run
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.server_config import ListenConfig, ServerConfig

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Kinds that a cluster has only with an operator of their own; no schema of Kubernetes knows them.
OPERATORS = {"LeaderWorkerSet", "PodMonitor", "RayCluster", "ScaledObject"}
# Where the images keep what they download; the hub's cache and the packaged model lie below.
MODELS = "/models"


class Started:
    """Accepts a command line that the program would start with.

    Attributes:
        engine: the configuration of the engine that it would start.
        server: that of its frontend.
    """

    engine: EngineConfig
    server: ServerConfig

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        self.engine = engine_config
        self.server = server_config
        return 0

    def run_engine(self, engine_config: EngineConfig, listen_config: ListenConfig) -> int:
        raise AssertionError("nothing here runs an engine without HTTP")


def started(arguments: list[str], **variables: str) -> Started:
    """What the image's entrypoint would start with these arguments, with Kubernetes's `$(NAME)` filled in."""
    for name, value in variables.items():
        arguments = [argument.replace(f"$({name})", value) for argument in arguments]
    starts = Started()
    assert run(["serve", *arguments], starts) == 0
    return starts


def tool(name: str) -> str:
    """Return the path of a program that `make deploy-tools` or the dev extra brings; skip the test without it."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: make deploy-tools")
    return found


def output_of(name: str, *arguments: str) -> str:
    """Run one of those programs, which has to succeed, and return what it prints."""
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def documents(text: str) -> dict[str, Any]:
    """The objects of a manifest by their kinds, each of which there is one; pods that are tests are left out."""
    found = [document for document in yaml.safe_load_all(text) if document and document["kind"] != "Pod"]
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found)
    return by_kind


def check_schema(text: str) -> None:
    """Every object is one that the newest Kubernetes known takes, without a field too many."""
    for document in yaml.safe_load_all(text):
        if document and document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def check_serving_pod(pod: dict[str, Any]) -> Started:
    """What holds for each pod that answers HTTP; returns what its command line starts."""
    (container,) = pod["containers"]
    assert "command" not in container
    starts = started(container["args"])
    assert [port["containerPort"] for port in container["ports"]] == [starts.server.port]

    paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/health", "readiness": "/health", "liveness": "/live"}

    before_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before_s + starts.engine.supervision.shutdown_timeout

    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"models": MODELS, "tmp": "/tmp", "shm": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["HF_HOME"] == MODELS
    assert all(str(variables[name]).startswith(f"{MODELS}/") for name in ("PAGEWIRE_CACHE", "TRITON_CACHE_DIR"))
    assert {"PAGEWIRE_API_KEY", "HF_TOKEN"} <= variables.keys()

    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    num_gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
    assert num_gpus in (0, starts.engine.parallel.mesh.world_size)
    name = container["image"].rpartition("/")[2].partition(":")[0]
    assert name == ("pagewire-cuda" if num_gpus else "pagewire")
    return starts
