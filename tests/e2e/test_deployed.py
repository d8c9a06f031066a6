"""The command lines of the images, the manifests and the unit run as they stand, in what a container is to them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import container
from tests.support.children import wait_until
from tests.support.fake_hub import FakeHub, FakeRepo, repo_files
from tests.support.running_server import RunningServer
from tests.support.tiny_model import tiny_checkpoint
from tools.processes import processes_below

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
REQUEST: dict[str, Any] = {"model": "x", "prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def manifest_arguments() -> list[str]:
    """The container's arguments in the manifest for CPUs, for a tiny model of a hub and a free port."""
    (patch, _) = yaml.safe_load((DEPLOY / "kubernetes" / "cpu" / "kustomization.yaml").read_text())["patches"]
    (arguments,) = [change["value"] for change in yaml.safe_load(patch["patch"]) if change["path"].endswith("/args")]
    replaced = {"--model=SmolLM2-135M-Instruct": "--model=org/tiny", "--port=8000": "--port=0"}
    assert replaced.keys() <= set(arguments)
    return [*(replaced.get(argument, argument) for argument in arguments), "--served-model-name=x"]


def image_entrypoint() -> list[str]:
    found = re.search(r'^ENTRYPOINT \["python3", "-m", "pagewire", (.*)\]$', (DEPLOY / "Dockerfile").read_text(), re.M)
    assert found
    arguments: list[str] = json.loads(f"[{found[1]}]")
    return arguments


def ask(server: RunningServer, path: str, body: Any = None, *, key: str | None = "k") -> tuple[int, Any]:
    """Return the status and the document of an answer, by an API key."""
    request = urllib.request.Request(
        server.url.replace("0.0.0.0", "127.0.0.1") + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text.decode()
    except urllib.error.HTTPError as error:
        return error.code, None


def is_running(server: RunningServer) -> bool:
    """Whether a request is in the batch."""
    return re.search(r"^vllm:num_requests_running\{.*\} 1\.0$", ask(server, "/metrics")[1], re.MULTILINE) is not None


def test_pod_of_a_nameless_user_serves_from_a_read_only_system_and_drains_as_process_1(tmp_path: Path) -> None:
    if container.obstacle():
        pytest.skip(str(container.obstacle()))
    repo = FakeRepo(repo_files(tiny_checkpoint("llama", max_position=2048)), gated=True, token="hf_secret")
    with FakeHub({"org/tiny": repo}) as hub, container.volumes(2) as (models, temporary):
        server = RunningServer(
            [*image_entrypoint(), *manifest_arguments()],
            tmp_path,
            environment={
                "HF_ENDPOINT": hub.endpoint,
                "HF_TOKEN": "hf_secret",
                "HF_HOME": str(models),
                "PAGEWIRE_CACHE": str(models / "pagewire"),
                "TMPDIR": str(temporary),
                "VLLM_API_KEY": "k",
                # What Kubernetes would set for a Service of that name, without enableServiceLinks: false.
                "PAGEWIRE_PORT": "tcp://10.0.0.1:80",
            },
            prefix=container.entering(models, temporary),
        )
        try:
            first = min(processes_below(server.pid), key=lambda process: process.started)
            owner = Path(f"/proc/{first.pid}/status").read_text()
            assert re.search(rf"^Uid:\s+{container.USER_ID}\b", owner, re.M)
            assert re.search(r"^NSpid:\s+\d+\s+1$", owner, re.M)
            assert (models / "hub" / "models--org--tiny").is_dir()

            assert [ask(server, path, key=None)[0] for path in ("/live", "/health", "/metrics")] == [200, 200, 401]
            assert [model["id"] for model in ask(server, "/v1/models")[1]["data"]] == ["x"]

            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(ask, server, "/v1/completions", REQUEST)
                wait_until(lambda: is_running(server), 20, "the request's first step")
                os.kill(first.pid, signal.SIGTERM)
                status, document = answer.result()
            assert (status, document["usage"]["completion_tokens"]) == (200, REQUEST["max_tokens"])
            wait_until(lambda: server.exit_code is not None, 20, "the end of the pod")
            assert server.exit_code == 0, server.log
            assert list(temporary.iterdir()) == []
        finally:
            server.stop(signal.SIGKILL)


def test_service_takes_its_flags_from_the_file_and_the_image_says_that_it_is_healthy(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "pagewire.service").read_text()
    found = re.search(r"^ExecStart=\S+/python3 -m pagewire (.*)$", unit, re.M)
    assert found
    settings = yaml.safe_load((DEPLOY / "systemd" / "config.yaml").read_text())
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**settings, "model": str(tiny_checkpoint()), "port": 0}))
    server = RunningServer(found[1].replace("/etc/pagewire/config.yaml", str(config)).split(), tmp_path)
    port = server.url.rpartition(":")[2]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (check,) = re.findall(r'^ +CMD (\[".*"\])$', dockerfile, re.M)
    command = [part.replace(":8000", f":{port}") for part in json.loads(check)]
    command[0] = sys.executable
    assert subprocess.run(command, timeout=30, capture_output=True).returncode == 0
    assert server.stop() == 0
    assert subprocess.run(command, timeout=30, capture_output=True).returncode != 0
