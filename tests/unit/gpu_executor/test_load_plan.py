"""What is settled before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.load_plan import LoadPlan, plan_load
from pagewire.ipc.config import GPU_STEP_LIMITS, CacheConfig, EngineConfig, ModelOptions, SchedulerConfig, StepLimits
from pagewire.ipc.errors import ConfigError
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
