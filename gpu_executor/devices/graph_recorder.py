"""Capturing what is launched on a device, to launch it again as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

# "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "HIP out of memory"; and cuBLAS's and rocBLAS's.
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "rocblas_status_memory_error")


class GraphRecorder(Protocol):
    """What captures work of a device, and how much memory that leaves."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture what `work` launches, and return what launches it again.

        Args:
            work: is called more than once: what a library does at a first launch (compiling, allocating) can't be part
                of a graph.

        Raises:
            Exception: it can't be captured; `is_out_of_memory` says whether for want of memory.
        """
        ...

    def free_bytes(self) -> int:
        """Return what the device has left, once memory that is only kept for later use is given back."""
        ...


class CudaRecorder:
    """Captures by torch, on NVIDIA's and AMD's GPUs.

    All captures run on one stream and share one pool of memory: what a graph computes in between is overwritten by the
    next replay of any of them, and they are replayed one after the other.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `GraphRecorder.record`."""
        caller = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_up(work, caller)
            # Another thread may wait for an event of the device meanwhile, which is an error in other modes.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(caller)  # torch does not get there if the end of a capture fails
        return graph.replay

    def free_bytes(self) -> int:
        """See `GraphRecorder.free_bytes`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def _warm_up(self, work: Callable[[], None], caller: torch.cuda.Stream) -> None:
        """Run the work where it will be captured: kernels are compiled, libraries allocate what they keep a stream."""
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            work()
        caller.wait_stream(self._stream)


def is_out_of_memory(exc: BaseException | None) -> bool:
    """Say whether an error, or one that it hides, is for want of a GPU's memory.

    torch's allocator has a class of its own for that. The driver, which keeps graphs and the code of kernels, Triton
    and libraries say it in words. The end of a capture in which there was no memory may fail by another error.
    """
    while exc is not None:
        if isinstance(exc, torch.OutOfMemoryError):
            return True
        if isinstance(exc, RuntimeError) and any(words in str(exc) for words in _NO_MEMORY):
            return True
        exc = exc.__context__
    return False
