"""Flags that this machine can't meet end the start with exit code 2 and a line that names the remedy."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow  # each test starts an engine


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--device", "cuda"], ["--device cuda", "--device cpu"]),
        (["--kernels", "triton"], ["--kernels triton", "--device cpu"]),
        (["--device", "cpu", "--attention-backend", "flashinfer"], ["--attention-backend flashinfer", "leave it out"]),
    ],
)
def test_what_the_machine_lacks_is_refused_in_one_line(flags: list[str], texts: list[str]) -> None:
    command = [sys.executable, "-m", "pagewire", "serve", str(tiny_checkpoint("llama")), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert all(text in last for text in texts), done.stderr
    assert "Traceback" not in done.stderr
