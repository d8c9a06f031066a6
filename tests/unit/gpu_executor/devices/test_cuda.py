"""Copies to and from a GPU do not wait for it, and hold what was copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

LONG_CYCLES = 200_000_000  # about a tenth of a second


@pytest.fixture
def device():
    from pagewire.gpu_executor.devices.cuda import CudaDevice

    return CudaDevice()


def test_device_is_the_current_one_and_knows_its_memory(device):
    memory = device.memory()
    assert torch.cuda.current_device() == device.torch_device.index
    assert 0 < memory.free_bytes <= memory.total_bytes
    assert device.name in memory.source


def test_copies_do_not_wait_for_the_work_before_them(device):
    torch.cuda._sleep(LONG_CYCLES)
    before = device.mark()
    tensor = device.upload(np.arange(1000))
    download = device.download(tensor + 1)
    assert not before.is_reached()
    assert download.array().tolist() == list(range(1, 1001))
    assert before.is_reached()


def test_uploaded_arrays_may_be_changed_while_the_device_is_busy(device):
    torch.cuda._sleep(LONG_CYCLES)
    array = np.zeros(1000, dtype=np.int64)
    tensors = []
    for number in range(64):  # their pinned buffers come from torch's pool, which must not reuse one too early
        array[:] = number
        tensors.append(device.upload(array))
    for number, tensor in enumerate(tensors):
        assert tensor.unique().tolist() == [number]


def test_download_is_of_the_moment_at_which_it_was_launched(device):
    tensor = torch.zeros(1000, device=device.torch_device)
    torch.cuda._sleep(LONG_CYCLES)
    download = device.download(tensor)
    tensor.fill_(1.0)
    assert download.array().sum() == 0.0


def test_time_between_markers_is_the_devices(device):
    start = device.mark()
    torch.cuda._sleep(LONG_CYCLES)
    end = device.mark()
    end.wait()
    assert 0.01 < end.seconds_since(start) < 5.0
