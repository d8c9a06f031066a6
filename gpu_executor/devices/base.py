"""What a step runs on, as far as the executor must know it: where tensors are, how they get there, and what time it is.

A GPU computes in the order in which work was launched, while the host goes on: an upload is there for whatever is
launched after it, a download is there only once its `array` was waited for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device.

    Attributes:
        total_bytes: all that it has; a CPU: the RAM, or what the control group grants.
        free_bytes: what can be had now without pushing anyone out.
        source: what sets the total, for people: "RAM", "cgroup limit", "of NVIDIA H200".
    """

    total_bytes: int
    free_bytes: int
    source: str

    def divided(self, num_parts: int) -> DeviceMemory:
        """Return what each of some executors has that divide this memory evenly."""
        if num_parts == 1:
            return self
        source = f"{self.source} for each of {num_parts} executors"
        return DeviceMemory(self.total_bytes // num_parts, self.free_bytes // num_parts, source)


class Download(ABC):
    """A copy to the host that may be under way."""

    @abstractmethod
    def array(self) -> np.ndarray:
        """Wait for the copy and return it."""


class Marker(ABC):
    """A point in the device's order of work."""

    @abstractmethod
    def is_reached(self) -> bool:
        """Say whether the device has done everything that was launched before."""

    @abstractmethod
    def wait(self) -> None:
        """Block until it has; other threads run meanwhile."""

    @abstractmethod
    def seconds_since(self, earlier: Marker) -> float:
        """Return the device's time between two markers of one device, both reached."""


class Device(ABC):
    """One device.

    Attributes:
        torch_device: where tensors are made.
        name: for people: "CPU", "NVIDIA H200".
        is_asynchronous: whether launched work goes on while the host does.
    """

    torch_device: torch.device
    name: str
    is_asynchronous: bool = False

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """Return total and free memory now."""

    @abstractmethod
    def upload(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device; it may be changed at once afterwards."""

    @abstractmethod
    def download(self, tensor: Tensor) -> Download:
        """Begin to copy a tensor as it will be when the work launched so far is done."""

    @abstractmethod
    def mark(self) -> Marker:
        """Return the point after all that was launched so far."""
