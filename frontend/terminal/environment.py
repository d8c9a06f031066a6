"""`pagewire collect-env`: what a bug report should say of a machine, without asking torch, which takes seconds."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pagewire.checkpoint.sources.inventory import hub_cache_directory
from pagewire.checkpoint.sources.packaged import default_cache_directory
from pagewire.version import __version__

Say = Callable[[str], None]

_PACKAGES = (
    "torch", "triton", "numpy", "pyzmq", "msgspec", "uvloop", "aiohttp", "tokenizers", "safetensors",
    "huggingface-hub", "llguidance", "transformers", "ray",
)  # fmt: skip
_VARIABLES = re.compile(r"(PAGEWIRE|VLLM|HF|CUDA|NVIDIA|OMP|XDG|RAY)_\w+|TMPDIR")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL|HEADERS")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_TIMEOUT_S = 10.0


def run(say: Say) -> int:
    """Print it; return the exit code."""
    rows = list(_rows())
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:<{width}}  {value}")
    return 0


def _rows() -> Iterator[tuple[str, str]]:
    yield "pagewire", f"{__version__} in {Path(__file__).resolve().parents[2]}"
    yield "python", f"{platform.python_version()} at {sys.executable}"
    yield "system", f"{platform.platform()}, {platform.libc_ver()[0]} {platform.libc_ver()[1]}".rstrip(", ")
    yield "cpu", f"{_cpu_name()}, {_num_cpus()} CPUs may be used"
    yield "memory", _memory()
    yield from (("gpu", line) for line in _gpus())
    for name in _PACKAGES:
        yield name, _version(name)
    yield "hub cache", str(hub_cache_directory())
    yield "packaged model", str(default_cache_directory())
    for name in sorted(os.environ):
        if _VARIABLES.fullmatch(name):
            yield name, "(set)" if _SECRET.search(name) else _IN_URL.sub("(set)", os.environ[name])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    text = _read("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    known = [word for word in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if flags and word in flags[1].split()]
    name = match[1] if match else platform.processor() or platform.machine()
    return f"{name} ({' '.join(known) or 'no AVX2'})"


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    fields = dict(re.findall(r"^(\w+): +(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in fields:
        return "unknown"
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    cgroup = f", cgroup limit {int(limit) / 2**30:.1f} GiB" if limit.isdigit() else ""
    total, free = (int(fields.get(name, 0)) / 2**20 for name in ("MemTotal", "MemAvailable"))
    return f"{total:.1f} GiB, {free:.1f} GiB available{cgroup}"


def _gpus() -> list[str]:
    """Return a line for each GPU, by the tool of its driver."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
        return _lines(query) or ["nvidia-smi fails"]
    if shutil.which("rocm-smi"):
        return _lines(["rocm-smi", "--showproductname", "--csv"]) or ["rocm-smi fails"]
    return ["none (neither nvidia-smi nor rocm-smi is there)"]


def _lines(command: list[str]) -> list[str]:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system
        return ""
