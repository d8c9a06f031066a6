"""What is settled before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.load_plan import LoadPlan, plan_load
from pagewire.gpu_executor.parallel.rank_group import ALONE, Alone
from pagewire.ipc.config import GPU_STEP_LIMITS, CacheConfig, EngineConfig, ModelOptions, SchedulerConfig, StepLimits
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.steps import RankPlacement
from tests.support.tiny_model import tiny_checkpoint


def plan(cache: CacheConfig | None = None, scheduler: SchedulerConfig | None = None, **model: object) -> LoadPlan:
    options = ModelOptions(model_path=str(tiny_checkpoint()), **model)  # type: ignore[arg-type]
    config = EngineConfig(model=options, cache=cache or CacheConfig(), scheduler=scheduler or SchedulerConfig())
    return plan_load(config, HostLimits())


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_flags_for_a_gpu_that_a_cpu_meets_anyway_are_accepted(kernels: str) -> None:
    settled = plan(kernels=kernels, enforce_eager=True, batch_invariant=True)
    assert settled.device.torch_device.type == "cpu"
    assert settled.graph_sizes == ()


@pytest.mark.parametrize(
    ("options", "cache", "flag"),
    [
        ({"kernels": "cpu", "attention_backend": "triton"}, {}, "--attention-backend"),
        ({"kernels": "reference", "attention_backend": "flashinfer"}, {}, "--attention-backend"),
        ({"device": "cuda", "kernels": "cpu"}, {}, "--"),
    ],
)
def test_what_can_not_be_met_is_refused_by_its_flag(
    options: dict[str, object], cache: dict[str, str], flag: str
) -> None:
    with pytest.raises(ConfigError, match=flag):
        plan(CacheConfig(**cache), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2"])
def test_8_bit_caches_are_for_kernels_that_keep_them(kv_cache_dtype: str) -> None:
    settled = plan(CacheConfig(kv_cache_dtype=kv_cache_dtype), kernels="reference")  # type: ignore[arg-type]
    assert settled.kv_dtype.itemsize == 1


class FakeGpu(CpuDevice):
    is_asynchronous = True


class CapturableOps(ReferenceOps):
    can_be_captured = True


def test_graphs_are_captured_on_a_gpu_by_kernels_that_allow_it_unless_it_is_forbidden() -> None:
    on_gpu = replace(
        plan(kernels="reference"), device=FakeGpu(HostLimits()), ops=CapturableOps(), limits=GPU_STEP_LIMITS
    )
    assert on_gpu.graph_sizes[-1] == GPU_STEP_LIMITS.max_num_seqs
    assert replace(on_gpu, ops=ReferenceOps()).graph_sizes == ()
    eager = plan(kernels="reference", enforce_eager=True).config
    assert replace(on_gpu, config=eager).graph_sizes == ()


def test_no_graph_has_more_rows_than_a_step_has_tokens() -> None:
    on_gpu = replace(plan(kernels="reference"), device=FakeGpu(HostLimits()), ops=CapturableOps())
    assert replace(on_gpu, limits=StepLimits(max_num_seqs=256, max_num_batched_tokens=100)).graph_sizes[-1] == 100
    assert replace(on_gpu, limits=StepLimits(max_num_seqs=20, max_num_batched_tokens=100)).graph_sizes[-1] == 20


def test_the_longest_context_is_the_flag_or_the_models() -> None:
    assert plan(max_model_len=100).max_blocks_of_request == 7
    assert plan().max_model_len == 512


class EightCpus(HostLimits):
    def num_cpus(self) -> int:
        return 8


@pytest.mark.parametrize(
    ("num_on_host", "cpu_threads", "expected"), [(1, None, 8), (3, None, 2), (16, None, 1), (3, 5, 5)]
)
def test_executors_of_one_host_divide_its_cpus(num_on_host: int, cpu_threads: int | None, expected: int) -> None:
    options = ModelOptions(model_path=str(tiny_checkpoint()), kernels="reference", cpu_threads=cpu_threads)
    placement = RankPlacement(rank=1, num_on_host=num_on_host)
    settled = plan_load(EngineConfig(model=options), EightCpus(), placement)
    assert (settled.num_threads, settled.num_sharing) == (expected, num_on_host)
    assert replace(settled, device=FakeGpu(HostLimits())).num_sharing == 1


class CapturableRanks(Alone):
    size = 2


class SpeakingRanks(CapturableRanks):
    can_be_captured = False


def test_graphs_hold_sums_over_ranks_that_can_be_captured_and_no_links() -> None:
    ops = CapturableOps()
    on_gpu = replace(plan(kernels="reference"), device=FakeGpu(HostLimits()), ops=ops)
    for ranks, pp, is_captured in [(CapturableRanks(), 1, True), (SpeakingRanks(), 1, False), (ALONE, 2, False)]:
        ops.join(ranks)
        parallel = ParallelConfig(pipeline_parallel_size=pp)
        config = msgspec.structs.replace(on_gpu.config, parallel=parallel)
        assert bool(replace(on_gpu, config=config).graph_sizes) == is_captured
