"""What the device does at most, by torch's own operations: the measured roof beside the data sheet's."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from tools.gpu_check.records import Ceiling, Machine
from tools.gpu_check.setting import Setting
from tools.gpu_check.stopwatch import seconds_a_call

_LIBRARIES = ("pagewire", "torch", "triton", "transformers")


def measure_machine(setting: Setting) -> Machine:
    """Return what is measured on."""
    versions = {name: found for name in _LIBRARIES if (found := _version(name)) is not None}
    if torch.version.cuda is not None:
        versions["CUDA"] = torch.version.cuda
    if torch.version.hip is not None:
        versions["ROCm"] = torch.version.hip
    is_gpu = setting.device == "cuda"
    return Machine(
        device=torch.cuda.get_device_name() if is_gpu else "CPU, a trial of the check itself",
        memory_bytes=torch.cuda.mem_get_info()[1] if is_gpu else 0,
        versions=versions,
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
    )


def measure_ceilings(setting: Setting) -> Iterator[Ceiling]:
    """Measure copies, reads and products."""
    source = torch.ones(setting.ceiling_bytes // 4, device=setting.device)
    target = torch.empty_like(source)
    copy_s = seconds_a_call([lambda: target.copy_(source)], setting.device)
    yield Ceiling(name="copy", value=2 * setting.ceiling_bytes / copy_s / 1e9, unit="GB/s")
    read_s = seconds_a_call([lambda: torch.sum(source)], setting.device)
    yield Ceiling(name="read", value=setting.ceiling_bytes / read_s / 1e9, unit="GB/s")
    yield _products(setting)


def _products(setting: Setting) -> Ceiling:
    rows = setting.ceiling_rows
    # Random numbers: with zeros a GPU stays below its power limit and runs faster than with any model.
    x, weight = (torch.randn(rows, rows, device=setting.device).to(torch.bfloat16) for _ in range(2))
    products_s = seconds_a_call([lambda: F.linear(x, weight)], setting.device)
    return Ceiling(name="products", value=2 * rows**3 / products_s / 1e12, unit="TFLOP/s")


def run(setting: Setting) -> Iterator[Machine | Ceiling]:
    """The part of the check."""
    return itertools.chain([measure_machine(setting)], measure_ceilings(setting))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
