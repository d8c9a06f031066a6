"""The manifests ask for what the program has: its flags, its endpoints, its ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pagewire.frontend.cli.main import run
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.server_config import ListenConfig, ServerConfig
from pagewire.version import __version__

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ROUTES = (Path(__file__).resolve().parents[3] / "frontend" / "http" / "server.py").read_text(encoding="utf-8")


class _Starts:
    """Accepts a command line that the program would start with."""

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        self.port = server_config.port
        return 0

    def run_engine(self, engine_config: EngineConfig, listen_config: ListenConfig) -> int:
        return 0


def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes" / "pagewire.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_the_pods_command_line_is_one_that_the_program_takes():
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    starts = _Starts()
    assert run(container["args"], starts) == 0
    assert [port["containerPort"] for port in container["ports"]] == [starts.port]


def test_the_probes_ask_for_endpoints_that_there_are():
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert f'"{container[probe]["httpGet"]["path"]}"' in ROUTES


def test_the_model_cache_is_on_the_volume():
    spec = manifests()["Deployment"]["spec"]["template"]["spec"]
    (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "models"]
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for variable in ("PAGEWIRE_CACHE", "HF_HOME"):
        assert f"{variable}={mount['mountPath']}/" in dockerfile
    claim = spec["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert manifests()["PersistentVolumeClaim"]["metadata"]["name"] == claim


def test_the_service_finds_the_pods():
    labels = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests()["Service"]["spec"]["selector"].items() <= labels.items()


def test_the_image_has_the_version():
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(f":{__version__}")


def test_the_compose_file_starts_the_program():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["pagewire"]
    assert run([part.replace("${MODEL:-SmolLM2-135M-Instruct}", "m") for part in service["command"]], _Starts()) == 0
