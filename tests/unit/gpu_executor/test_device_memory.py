"""What a load has taken of a GPU: the driver's and the allocator's counts, by fakes that act out a load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagewire.gpu_executor.device_memory import Allocator, GpuMeter
from pagewire.gpu_executor.devices.base import DeviceMemory
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.memory import MemoryUse
from pagewire.ipc.errors import MachineError

GIB, MIB = 2**30, 2**20
CONTEXT = 400 * MIB


class FakeGpu(CpuDevice):
    """A GPU of 80 GiB. Others may hold some of it; this process's context and code are there from the first look."""

    def __init__(self, others: int = 0) -> None:
        super().__init__(HostLimits())
        self.name = "NVIDIA H200"
        self.others = others
        self.outside_torch = CONTEXT
        self.allocator = FakeAllocator(self)

    def memory(self) -> DeviceMemory:
        taken = self.others + self.outside_torch + self.allocator.reserved
        return DeviceMemory(total_bytes=80 * GIB, free_bytes=80 * GIB - taken, source=f"of {self.name}")


class FakeAllocator(Allocator):
    """Keeps what it got once until it is told to release it."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.allocated = self.reserved = self.peak = 0

    def take(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        if self.gpu.others + self.gpu.outside_torch + self.reserved > 80 * GIB:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def give_back(self, num_bytes: int) -> None:
        self.allocated -= num_bytes

    def allocated_bytes(self) -> int:
        return self.allocated

    def reserved_bytes(self) -> int:
        return self.reserved

    def peak_bytes_of(self, work: Callable[[], None]) -> int:
        self.peak = self.allocated
        work()
        return self.peak

    def release(self) -> None:
        self.reserved = self.allocated


class FakeRun:
    """Steps that take memory while they run, and load code for good."""

    def __init__(self, gpu: FakeGpu, prefill: int, decode: int, code: int = 0) -> None:
        self._gpu, self._prefill, self._decode, self._code = gpu, prefill, decode, code

    def _step(self, num_bytes: int) -> None:
        self._gpu.allocator.take(num_bytes)
        self._gpu.allocator.give_back(num_bytes)

    def rehearse(self) -> None:
        self._gpu.outside_torch += self._code

    def prefill(self) -> None:
        self._step(self._prefill)

    def decode(self) -> None:
        self._step(2 * self._decode)

    def decode_without_draws(self) -> None:
        self._step(self._decode)


def load(gpu: FakeGpu, run: FakeRun, *, weights: int = 16 * GIB, num_graphs: int = 0, kept: int = 0) -> MemoryUse:
    meter = GpuMeter(gpu, gpu.allocator)
    gpu.allocator.take(weights + 3 * GIB)  # some matrices exist twice for a while
    gpu.allocator.give_back(3 * GIB)
    meter.note_weights()
    gpu.allocator.take(kept)
    return meter.measure(run, num_graphs)  # type: ignore[arg-type]


def test_weights_work_space_and_code_are_what_was_measured() -> None:
    gpu = FakeGpu()
    use = load(gpu, FakeRun(gpu, prefill=2 * GIB, decode=GIB // 2, code=100 * MIB), kept=50 * MIB)
    assert use.weights == 16 * GIB
    assert use.workspace == int(1.1 * 2 * GIB)
    assert use.runtime == CONTEXT + 100 * MIB + 50 * MIB
    assert use.graphs == 0
    assert gpu.allocator.reserved == gpu.allocator.allocated  # the pool can have the rest


def test_a_decode_that_takes_more_than_a_prefill_sets_the_work_space() -> None:
    gpu = FakeGpu()
    assert load(gpu, FakeRun(gpu, prefill=GIB, decode=GIB)).workspace == int(1.1 * 2 * GIB)


def test_graphs_share_the_memory_of_the_largest_and_each_has_some_of_its_own() -> None:
    gpu = FakeGpu()
    use = load(gpu, FakeRun(gpu, prefill=2 * GIB, decode=GIB // 2), num_graphs=35)
    assert use.graphs == int(1.1 * GIB // 2) + 35 * 8 * MIB


@pytest.mark.parametrize("others", [0, 30 * GIB])
def test_what_others_hold_is_not_counted_as_this_process_but_for_a_bounded_context(others: int) -> None:
    gpu = FakeGpu(others)
    use = load(gpu, FakeRun(gpu, prefill=GIB, decode=GIB))
    assert use.runtime == (CONTEXT if others == 0 else 512 * MIB)


def test_memory_that_others_give_back_meanwhile_is_no_negative_use() -> None:
    gpu = FakeGpu(others=30 * GIB)
    meter = GpuMeter(gpu, gpu.allocator)
    gpu.allocator.take(GIB)
    meter.note_weights()
    gpu.others = 0
    use = meter.measure(FakeRun(gpu, prefill=GIB, decode=GIB), 0)  # type: ignore[arg-type]
    assert use.runtime == 512 * MIB


class FailingRun(FakeRun):
    """Steps that fail at their first launch."""

    def __init__(self, gpu: FakeGpu, error: RuntimeError) -> None:
        super().__init__(gpu, prefill=GIB, decode=GIB)
        self._error = error

    def rehearse(self) -> None:
        raise self._error


def test_a_driver_that_has_no_memory_for_code_names_the_flags_as_well() -> None:
    gpu = FakeGpu()
    with pytest.raises(MachineError, match="--max-num-batched-tokens"):
        load(gpu, FailingRun(gpu, torch.AcceleratorError("CUDA error: out of memory")))


def test_a_failing_device_is_not_taken_for_want_of_memory() -> None:
    gpu = FakeGpu()
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        load(gpu, FailingRun(gpu, torch.AcceleratorError("CUDA error: an illegal memory access was encountered")))


def test_a_step_that_does_not_fit_names_the_flags() -> None:
    gpu = FakeGpu(others=60 * GIB)
    with pytest.raises(MachineError, match=r"NVIDIA H200 beside the weights \(16\.00 GiB.*--max-num-batched-tokens"):
        load(gpu, FakeRun(gpu, prefill=5 * GIB, decode=GIB))
