"""Runs `tools.compile_kernels` in a process of its own: in the tests' process Triton interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport

ROOT = Path(__file__).resolve().parents[2]


class ToolRun(NamedTuple):
    """What the tool did."""

    code: int
    output: str
    reports: list[CompileReport]


def compile_kernels(directory: Path, *arguments: str) -> ToolRun:
    """Run the tool on all CPUs, and return what it printed and wrote into an empty directory."""
    written = directory / "report.json"
    environment = os.environ | {"TMPDIR": str(directory), "TRITON_CACHE_DIR": str(directory / "never-used")}
    done = subprocess.run(
        [sys.executable, "-m", "tools.compile_kernels", "--json", str(written), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reports = msgspec.json.decode(written.read_bytes(), type=list[CompileReport]) if written.exists() else []
    return ToolRun(done.returncode, done.stdout + done.stderr, reports)
