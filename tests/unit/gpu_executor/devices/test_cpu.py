"""On a CPU everything is done when a call returns, and nothing that was copied changes afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits, HostMemory


@pytest.fixture
def device():
    times = iter([1.0, 3.5])
    return CpuDevice(HostLimits(), clock=lambda: next(times))


def test_uploaded_array_may_be_changed_at_once(device):
    array = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32)
    tensor = device.upload(array[:, ::2])
    array[:] = 0
    assert tensor.tolist() == [[1, 3], [4, 6]]
    assert tensor.dtype == torch.int32


@torch.inference_mode()
def test_downloaded_tensor_may_be_written_to_at_once(device):
    tensor = torch.tensor([1.5, 2.5])
    download = device.download(tensor)
    tensor.zero_()
    assert download.array().tolist() == [1.5, 2.5]


def test_markers_are_reached_and_tell_the_time_between_them(device):
    first, second = device.mark(), device.mark()
    second.wait()
    assert second.is_reached()
    assert second.seconds_since(first) == 2.5


def test_memory_is_the_hosts(monkeypatch, device):
    monkeypatch.setattr(HostLimits, "memory", lambda self: HostMemory(100, 40, "cgroup limit"))
    memory = device.memory()
    assert (memory.total_bytes, memory.free_bytes, memory.source) == (100, 40, "cgroup limit")
