"""A server whose executors run on two nodes of a Ray cluster: `make test-ray`, which installs Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ROOT
from tests.support.running_server import running_server
from tests.support.tiny_model import tiny_checkpoint
from tools.processes import processes_below

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

EXECUTOR = "pagewire.gpu_executor"
BODY: dict[str, Any] = {"prompt": [11, 12, 13], "max_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    yield process
    process.communicate("", timeout=60)


def test_executor_that_is_killed_on_a_node_is_replaced(
    cluster: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.stdout is not None
    monkeypatch.setenv("RAY_ADDRESS", cluster.stdout.readline().strip())
    flags = ["-tp", "2", "--distributed-executor-backend", "ray", "--cpu-threads", "1", "--kernels", "reference"]
    with running_server(tmp_path, str(tiny_checkpoint()), *flags) as server:
        assert "Ray has placed 2 agents on 2 nodes" in server.log
        first = server.post("/v1/completions", BODY)["choices"]
        executors = [process.pid for process in processes_below(cluster.pid) if process.module == EXECUTOR]
        assert len(executors) == 2
        os.kill(executors[1], signal.SIGKILL)
        assert server.post("/v1/completions", BODY)["choices"] == first
