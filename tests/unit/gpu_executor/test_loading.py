"""A load on a GPU, acted out on a CPU: what is measured, set aside, captured and told.

The device computes at once, its memory and its captures are fakes; model, kernels and steps are real.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch

from pagewire.gpu_executor import load_plan, loading
from pagewire.gpu_executor.device_memory import Allocator
from pagewire.gpu_executor.devices.base import DeviceMemory
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.devices.select import SelectedDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.loading import LoadedExecutor, StartupClock, load_executor
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.profile_run import ProfileRun
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import LoadModel
from tests.support.runner import Row, RunnerDriver
from tests.support.tiny_model import tiny_checkpoint

GIB, MIB = 2**30, 2**20


class FakeGpu(CpuDevice):
    """Computes at once, on the CPU."""

    is_asynchronous = True

    def __init__(self) -> None:
        super().__init__(HostLimits())
        self.name = "NVIDIA H200"
        self.free_bytes = 60 * GIB

    def memory(self) -> DeviceMemory:
        return DeviceMemory(total_bytes=80 * GIB, free_bytes=self.free_bytes, source="of NVIDIA H200")


class FakeAllocator(Allocator):
    """Every step takes a GiB."""

    error: RuntimeError | None = None
    num_steps = 0

    def allocated_bytes(self) -> int:
        return 0

    def reserved_bytes(self) -> int:
        return 0

    def peak_bytes_of(self, work: Callable[[], None]) -> int:
        type(self).num_steps += 1
        if self.error is not None:
            raise self.error
        work()
        return GIB

    def release(self) -> None:
        pass


class FakeRecorder:
    num_replays = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()

        def replay() -> None:
            FakeRecorder.num_replays += 1
            work()

        return replay

    def free_bytes(self) -> int:
        return GIB


class CapturableOps(ReferenceOps):
    can_be_captured = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    device = FakeGpu()
    monkeypatch.setattr(load_plan, "select_device", lambda *_: SelectedDevice(device, has_bfloat16=True))
    monkeypatch.setattr(load_plan, "select_ops", lambda *_, **__: CapturableOps())
    monkeypatch.setattr(loading, "Allocator", FakeAllocator)
    monkeypatch.setattr(loading, "CudaRecorder", FakeRecorder)
    monkeypatch.setattr(FakeAllocator, "num_steps", 0)
    monkeypatch.setattr(FakeRecorder, "num_replays", 0)
    return device


def load(num_blocks: int | None = None, *, max_num_seqs: int = 3, **model: object) -> LoadedExecutor:
    options = ModelOptions(model_path=str(tiny_checkpoint()), **model)  # type: ignore[arg-type]
    scheduler = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64)
    config = EngineConfig(model=options, scheduler=scheduler, cache=CacheConfig(kv_cache_dtype="float16"))
    message = LoadModel(executor_epoch=1, config=config, num_blocks=num_blocks)
    return load_executor(message, HostLimits(), StartupClock())


def test_the_budget_has_what_was_measured_and_room_for_graphs(gpu: FakeGpu) -> None:
    loaded = load()
    assert "80.00 GiB of NVIDIA H200 x 0.9" in loaded.ready.memory
    assert "work space 1.10 GiB, CUDA graphs 1.12 GiB" in loaded.ready.memory  # 1.1 x 1 GiB and 3 x 8 MiB
    assert "memory profile" in [phase for phase, _ in loaded.ready.startup]
    assert FakeAllocator.num_steps == 3


def test_nothing_is_captured_before_the_executor_is_ready(gpu: FakeGpu) -> None:
    graphs = load().runner.graphs
    assert graphs is not None
    told = []
    while (text := graphs.next_capture()) is not None:
        told.append(text)
        graphs.capture()
    assert [int(text.split()[-2]) for text in told] == [3, 2, 1]


def test_eager_means_no_graphs_and_no_memory_for_them(gpu: FakeGpu) -> None:
    loaded = load(enforce_eager=True)
    assert loaded.runner.graphs is None
    assert "CUDA graphs" not in loaded.ready.memory


def test_kernels_that_can_not_be_captured_are_not(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturableOps, "can_be_captured", Ops.can_be_captured)
    assert load().runner.graphs is None


def test_a_later_executor_keeps_the_pool_and_runs_the_steps_that_compile_its_kernels(gpu: FakeGpu) -> None:
    loaded = load(num_blocks=9)
    assert loaded.ready.num_blocks == 9
    assert "as settled at the first start" in loaded.ready.memory
    assert FakeAllocator.num_steps == 3
    assert loaded.runner.graphs is not None


def test_memory_that_others_hold_is_not_to_be_had(gpu: FakeGpu) -> None:
    gpu.free_bytes = 2 * GIB
    with pytest.raises(MachineError, match=r"of which 2\.00 GiB are free, must hold .*CUDA graphs \(1\.12 GiB\)"):
        load()


def test_a_step_that_finds_no_memory_ends_the_start_with_the_flags_to_lower(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeAllocator, "error", torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(MachineError, match="--max-num-batched-tokens"):
        load()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_steps_in_graphs_draw_the_tokens_of_steps_without(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from pagewire.gpu_executor.kernels.triton.triton_ops import TritonOps
    from tests.support.quick_interpreter import language_patched_once

    ops = TritonOps(torch.device("cpu"), is_batch_invariant=False, attention_backend="triton")
    monkeypatch.setattr(load_plan, "select_ops", lambda *_, **__: ops)
    monkeypatch.setattr(FakeAllocator, "peak_bytes_of", lambda *_: GIB)  # the interpreter is slow
    monkeypatch.setattr(ProfileRun, "rehearse", lambda _: None)
    with language_patched_once():
        eager = tokens_of_two_rows(load(enforce_eager=True, dtype="float32").runner)
        assert FakeRecorder.num_replays == 0
        captured = load(dtype="float32").runner
        assert captured.graphs is not None
        captured.graphs.capture()  # of 3 rows: the step's two are padded
        assert tokens_of_two_rows(captured) == eager
        assert FakeRecorder.num_replays == 2


def tokens_of_two_rows(runner: ModelRunner) -> list[list[int]]:
    rows = [
        Row(1, [5, 6, 7], Sampling(temperature=0.0), [1]),
        Row(2, [9, 8], Sampling(temperature=1.0, seed=3, repetition_penalty=1.3), [2]),
    ]
    driver = RunnerDriver(runner)
    driver.step([(rows[0], 3), (rows[1], 2)])
    for _ in range(2):
        driver.step([(row, 1) for row in rows])
    return [row.tokens for row in rows]
