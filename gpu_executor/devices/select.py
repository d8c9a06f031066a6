"""Which device a model runs on: the one place where it is chosen, once at start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.steps import RankPlacement

from ..compute_dtype import cpu_has_native_bf16
from ..host_limits import HostLimits
from .base import Device
from .cpu import CpuDevice
from .cuda import CudaDevice
from .requirements import DeviceFacts, check_requirements, read_device_facts, refusal

logger = logging.getLogger(__name__)

_ALONE = RankPlacement()

# What a GPU's number counts is what these variables leave.
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class SelectedDevice(NamedTuple):
    """A device that can be used, and whether it multiplies bf16 in hardware."""

    device: Device
    has_bfloat16: bool


def select_device(
    requested: str,
    kernels: str,
    host: HostLimits,
    placement: RankPlacement = _ALONE,
    find_gpu: Callable[[RankPlacement], DeviceFacts | str] | None = None,
) -> SelectedDevice:
    """Return the device to run on.

    All executors of a host come to the same kind: a GPU each, or the CPU for all.

    Args:
        requested: "cpu", "cuda" (AMD's GPUs too), or "auto": a GPU if there is one that will do and the kernels asked
            for run there, else the CPU.
        kernels: as `select_ops` knows them.
        host: the CPU's limits.
        placement: which executor of the host this is: it gets the GPU of that number.
        find_gpu: returns what is known of the executor's GPU, or why there is none; None: torch is asked.

    Raises:
        ConfigError: a GPU is asked for, and there is none, or it is below what is needed; or there are some, but fewer
            than executors.
        MachineError: the driver does not let this process use it.
    """
    # Triton's interpreter computes by numpy, which knows no bf16.
    cpu_has_bfloat16 = kernels != "triton" and cpu_has_native_bf16()
    if requested == "cpu" or (requested == "auto" and kernels == "cpu"):
        return SelectedDevice(CpuDevice(host), cpu_has_bfloat16)
    facts = (find_gpu or _find_gpu)(placement)
    reason = facts if isinstance(facts, str) else refusal(facts)
    if isinstance(facts, str) or reason is not None:
        if requested == "cuda":
            raise ConfigError(f"--device cuda: {reason}.", param="device")
        if kernels == "triton":
            raise ConfigError(
                f"--kernels triton: {reason}. (--device cpu has the kernels interpreted, for tests.)", param="kernels"
            )
        if not isinstance(facts, str):
            if placement.num_on_host > 1:  # the others may have taken theirs
                raise ConfigError(f"GPU {placement.index_on_host} can't be used: {reason}.", param="device")
            logger.warning("the model runs on the CPU: %s", reason)
        return SelectedDevice(CpuDevice(host), cpu_has_bfloat16)
    for line in check_requirements(facts):
        logger.warning("%s", line)
    return SelectedDevice(_open_gpu(facts, placement.index_on_host), facts.has_bfloat16)


def _open_gpu(facts: DeviceFacts, index: int) -> Device:
    """Set the GPU up, which is when a driver says that it is taken or broken."""
    try:
        device = CudaDevice(index)
        device.memory()
    except RuntimeError as exc:  # torch's answer to any error of the driver
        raise MachineError(
            f"{facts.name} can't be used: {_first_line(exc)}. Free it, choose another one by CUDA_VISIBLE_DEVICES, or "
            "choose --device cpu."
        ) from exc
    return device


def _find_gpu(placement: RankPlacement) -> DeviceFacts | str:
    """Return what torch knows of the executor's GPU, or why it sees none, as a clause with the remedy.

    Raises:
        ConfigError: it sees fewer than the host's executors need.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"this torch ({torch.__version__}) is built for CPUs alone; install a build of it for CUDA or ROCm, or "
            "choose --device cpu"
        )
    if torch.cuda.is_available():
        num_gpus = torch.cuda.device_count()
        if num_gpus < placement.num_on_host:
            raise ConfigError(
                f"{placement.num_on_host} executors of this host need a GPU each, and torch sees {num_gpus}: lower "
                "--tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size, spread them over more hosts "
                "by --nnodes, or choose --device cpu.",
                param="device",
            )
        return read_device_facts(placement.index_on_host)
    for name in _VISIBILITY:
        if (visible := os.environ.get(name)) is not None:
            return f"torch sees no GPU with {name}={visible!r}; unset it, or choose --device cpu"
    return f"torch sees no GPU ({_why_not()}); install its driver, or choose --device cpu"


def _why_not() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch does not annotate it
    except (RuntimeError, AssertionError) as exc:  # what torch raises without a device, and without code for any
        return _first_line(exc)
    return "but its library loads"


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0].rstrip(". ")
