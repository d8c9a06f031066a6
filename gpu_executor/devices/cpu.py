"""The CPU as a device: memory is the host's own, and whatever was called is done when the call returns."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..host_limits import HostLimits
from .base import Device, DeviceMemory, Download, Marker


class CpuDevice(Device):
    """The CPU.

    Args:
        host: what the system grants of its memory.
        clock: seconds, monotonic.
    """

    def __init__(self, host: HostLimits, clock: Callable[[], float] = time.perf_counter) -> None:
        self.torch_device = torch.device("cpu")
        self.name = "CPU"
        self._host = host
        self._clock = clock

    def memory(self) -> DeviceMemory:
        memory = self._host.memory()
        return DeviceMemory(total_bytes=memory.total_bytes, free_bytes=memory.free_bytes, source=memory.source)

    def upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: the caller may change its own at once

    def download(self, tensor: Tensor) -> Download:
        return _Copy(tensor.numpy(force=True).copy())  # a copy: later work may write to the tensor

    def mark(self) -> Marker:
        return _Moment(self._clock())


class _Copy(Download):
    """A copy that is there."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def array(self) -> np.ndarray:
        return self._array


class _Moment(Marker):
    """A moment that has passed."""

    def __init__(self, time_s: float) -> None:
        self._time_s = time_s

    def is_reached(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def seconds_since(self, earlier: Marker) -> float:
        assert isinstance(earlier, _Moment), "markers of one device"
        return self._time_s - earlier._time_s
