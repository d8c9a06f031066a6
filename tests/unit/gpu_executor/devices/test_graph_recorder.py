"""The order in which torch is asked to capture: warm first, on the stream of the capture, and the caller's comes back.

torch.cuda is acted out by a log of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from pagewire.gpu_executor.devices.graph_recorder import CudaRecorder, is_out_of_memory

DEVICE = torch.device("cuda", 0)


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


class FakeTorchCuda:
    """What `CudaRecorder` calls. `end_error`: what the end of a capture raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.end_error: RuntimeError | None = None
        self.main, self.side = FakeStream("main", self.log), FakeStream("side", self.log)
        self.current = self.main
        self.free = 7
        for name, value in {
            "Stream": lambda device: self.side,
            "graph_pool_handle": lambda: "pool",
            "current_stream": lambda device: self.current,
            "set_stream": self._set_stream,
            "CUDAGraph": lambda: self,
            "stream": self._stream,
            "graph": self._graph,
            "synchronize": lambda device: self.log.append("synchronize"),
            "empty_cache": lambda: self.log.append("empty cache"),
            "mem_get_info": lambda device: (self.free, 100),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def replay(self) -> None:
        self.log.append(f"replay on {self.current.name}")

    def work(self) -> None:
        self.log.append(f"work on {self.current.name}")

    def _set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    @contextmanager
    def _stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _graph(self, graph: object, *, pool: str, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert (graph, pool, capture_error_mode) == (self, "pool", "thread_local")
        self.log.append("capture begins")
        self.current = stream
        try:
            yield
        finally:
            self.log.append("capture ends")
            if self.end_error is not None:
                raise self.end_error  # torch leaves its stream current then
            self.current = self.main


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    return FakeTorchCuda(monkeypatch)


def test_work_is_warm_on_the_stream_that_captures_it(cuda: FakeTorchCuda) -> None:
    replay = CudaRecorder(DEVICE).record(cuda.work)
    assert cuda.log == [
        "side waits for main",
        "work on side",
        "main waits for side",
        "capture begins",
        "work on side",
        "capture ends",
    ]
    replay()
    assert cuda.log[-1] == "replay on main"


def test_the_callers_stream_comes_back_after_a_failed_end(cuda: FakeTorchCuda) -> None:
    cuda.end_error = RuntimeError("operation failed due to a previous error during capture")
    attempts = []

    def work() -> None:
        attempts.append(cuda.current.name)
        if len(attempts) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="previous error") as caught:
        CudaRecorder(DEVICE).record(work)
    assert attempts == ["side", "side"]
    assert cuda.current is cuda.main
    assert is_out_of_memory(caught.value)


def test_free_memory_is_counted_when_nothing_is_kept_any_more(cuda: FakeTorchCuda) -> None:
    assert CudaRecorder(DEVICE).free_bytes() == 7
    assert cuda.log == ["synchronize", "empty cache"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("HIP error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_want_of_memory_is_known_whoever_tells_it(error: RuntimeError) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), OSError("out of memory")]
)
def test_only_want_of_the_devices_memory_is_want_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)
