"""A GPU as a device, NVIDIA's or, by the same calls of torch, AMD's.

Everything is launched on one stream, torch's current one, and a stream does its work in the order it was launched in.
That alone keeps steps apart that are in flight together:

- What a step reads on the device (weights, KV blocks, block tables, last tokens, a graph's buffers) may be written by
  the launch of the next step while this one is still computing: the write comes after the reads.
- Device memory that a tensor gives back may be had by the next tensor at once: torch's allocator hands it out again on
  the same stream, where its next use comes after its last.
- A KV block that the core frees and gives to another row, and a row's place that is reused, are written by later steps.

Host memory is the one thing that both sides touch at their own pace. A copy to or from pageable memory would make the
host wait for all that was launched; one of pinned memory does not, and its buffer must live, unchanged, until the copy
is done. torch's allocator of pinned memory sees to that: each copy that does not block records an event on the buffer
that it uses, and a buffer that was given back is not handed out again before its events are reached. So nobody holds
the pinned buffer of an upload here, and a download that is dropped harms nobody.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .base import Device, DeviceMemory, Download, Marker


class CudaDevice(Device):
    """A GPU; it becomes torch's current one.

    Args:
        index: among those that torch sees.
    """

    is_asynchronous = True

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        self.name = torch.cuda.get_device_name(index)
        torch.cuda.set_device(self.torch_device)

    def memory(self) -> DeviceMemory:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.torch_device)
        return DeviceMemory(total_bytes=total_bytes, free_bytes=free_bytes, source=f"of {self.name}")

    def upload(self, array: np.ndarray) -> Tensor:
        source = torch.from_numpy(np.ascontiguousarray(array))
        # The copy into pinned memory is done when it returns: the caller's array is free then.
        pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source)
        return pinned.to(self.torch_device, non_blocking=True)

    def download(self, tensor: Tensor) -> Download:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        return _PinnedCopy(pinned, self.mark())

    def mark(self) -> _Event:
        return _Event(self.torch_device)


class _Event(Marker):
    """An event of the current stream.

    A waiting thread sleeps: the core that it would spin on is needed by the processes beside this one. Waking up takes
    some ten microseconds more, while the device computes the next step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]  # torch's
        self._event.record()

    def is_reached(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch's

    def wait(self) -> None:
        # The calling thread may never have used a GPU: its current one would be the first, and be set up for it.
        with torch.cuda.device(self._device):
            self._event.synchronize()  # releases the interpreter

    def seconds_since(self, earlier: Marker) -> float:
        assert isinstance(earlier, _Event), "markers of one device"
        return float(earlier._event.elapsed_time(self._event)) / 1000


class _PinnedCopy(Download):
    """A copy into pinned memory, whole when its event is reached."""

    def __init__(self, pinned: Tensor, event: _Event) -> None:
        self._pinned = pinned
        self._event = event

    def array(self) -> np.ndarray:
        self._event.wait()
        return self._pinned.numpy()
