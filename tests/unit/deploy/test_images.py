"""The images and what composes them: linted, run as a user in group 0, their entrypoint the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagewire.version import __version__
from tests.support.manifests import DEPLOY, MODELS, output_of, started

ROUTES = (DEPLOY.parent / "frontend" / "http" / "server.py").read_text(encoding="utf-8")
IMAGES = ("Dockerfile", "Dockerfile.cuda")


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of the last stage of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]
    last = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def variables(name: str) -> dict[str, str]:
    (text,) = [rest for word, rest in instructions(name) if word == "ENV"]
    return dict(part.split("=", 1) for part in text.split())


def composed(*names: str) -> dict[str, Any]:
    """The services of compose files, later ones over earlier ones as far as these files need it."""
    services: dict[str, Any] = {}
    for name in names:
        for service, settings in yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))["services"].items():
            services[service] = {**services.get(service, {}), **settings}
    return services


@pytest.mark.parametrize("name", IMAGES)
def test_image_passes_the_linter(name: str) -> None:
    output_of("hadolint", "--config", str(DEPLOY / ".hadolint.yaml"), str(DEPLOY / name))


@pytest.mark.parametrize("name", IMAGES)
def test_image_is_not_built_without_the_kernels(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    (path,) = re.findall(r"--no-deps \. \\\n +&& ls /opt/pagewire/lib/python\*/site-packages/(\S+\.so)\n", text)
    (extension,) = re.findall(r'Extension\("([\w.]+)"', (DEPLOY.parent / "setup.py").read_text(encoding="utf-8"))
    assert path == f"{extension.replace('.', '/')}.so"


def test_keys_beside_the_compose_file_reach_neither_images_nor_commits() -> None:
    for name, line in ((".dockerignore", "**/.env"), (".gitignore", ".env")):
        assert line in (DEPLOY.parent / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", IMAGES)
def test_image_is_the_server_and_takes_its_flags(name: str) -> None:
    found = dict(instructions(name))
    assert json.loads(found["ENTRYPOINT"]) == ["python3", "-m", "pagewire", "serve"]
    assert "CMD" not in found
    assert started(["--model", "m"]).server.port == int(found["EXPOSE"])
    assert found["STOPSIGNAL"] == "SIGTERM"
    asked = re.search(rf"http://127\.0\.0\.1:{found['EXPOSE']}(/\w+)'", found["HEALTHCHECK"])
    assert asked
    assert f'"{asked[1]}", health.live' in ROUTES


@pytest.mark.parametrize("name", IMAGES)
def test_image_runs_as_user_1000_and_lets_any_user_of_group_0_write_what_is_kept(name: str) -> None:
    found = dict(instructions(name))
    assert found["USER"] == "1000:0"
    assert found["VOLUME"] == MODELS
    (setup,) = [rest for word, rest in instructions(name) if word == "RUN" and "useradd" in rest]
    assert "useradd --uid 1000 --gid 0" in setup
    assert f"chown 1000:0 {MODELS}" in setup
    assert f"chmod g=u,g+s {MODELS}" in setup
    kept = variables(name)
    assert kept["HF_HOME"] == MODELS
    assert kept["PAGEWIRE_CACHE"] == f"{MODELS}/pagewire"
    assert kept["HOME"] == "/home/pagewire"


def test_images_differ_in_what_a_gpu_needs_alone() -> None:
    cpu, gpu = instructions("Dockerfile"), instructions("Dockerfile.cuda")
    assert [line for line in cpu if line[0] != "ENV"] == [
        line for line in gpu if line[0] != "ENV" and "apt-get" not in line[1]
    ]
    assert variables("Dockerfile.cuda").keys() - variables("Dockerfile").keys() == {
        "TRITON_CACHE_DIR",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
    }
    assert variables("Dockerfile").items() <= variables("Dockerfile.cuda").items()


def test_requirements_are_those_of_the_package_and_of_the_extras_asked_for() -> None:
    root = DEPLOY.parent
    printed = subprocess.run(
        [sys.executable, "deploy/requirements.py", "ray"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert printed == [*project["dependencies"], *project["optional-dependencies"]["ray"]]


@pytest.mark.parametrize(
    ("files", "image"),
    [(("compose.yaml",), "pagewire"), (("compose.yaml", "compose.gpu.yaml"), "pagewire-cuda")],
    ids=["cpu", "gpu"],
)
def test_composed_engine_starts_and_stops_in_order(files: tuple[str, ...], image: str) -> None:
    service = composed(*files)["pagewire"]
    starts = started([re.sub(r"\$\{MODEL:-(.*)\}", r"\1", part) for part in service["command"]])
    assert service["ports"] == [f"127.0.0.1:{starts.server.port}:{starts.server.port}"]
    assert int(service["stop_grace_period"].removesuffix("s")) > starts.engine.supervision.shutdown_timeout
    assert service["image"] == f"{image}:{__version__}"
    assert (DEPLOY / Path(service["build"]["dockerfile"]).name).is_file()
    assert service["volumes"] == [f"models:{MODELS}"]


def test_prometheus_scrapes_the_engine_and_grafana_asks_prometheus() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    settings = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    (job,) = settings["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["pagewire:8000"]}]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert "PAGEWIRE_API_KEY" in job["authorization"]["credentials"]
    (rules,) = settings["rule_files"]
    mounted = compose["services"]["prometheus"]["volumes"][0].split(":")
    assert mounted == [f"./prometheus/{rules}", f"/etc/prometheus/{rules}", "ro"]
    assert (DEPLOY / "prometheus" / rules).is_file()
    provisioning = DEPLOY / "compose" / "grafana"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "pagewire.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    assert mounts == {"./compose/grafana": "/etc/grafana/provisioning", "./grafana": provider["options"]["path"]}
