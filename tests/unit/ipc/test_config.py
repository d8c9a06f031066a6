from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig, StepLimits
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.parallel_config import ParallelConfig


@pytest.mark.parametrize(
    ("cls", "values", "part"),
    [
        (ModelOptions, {"max_model_len": 1}, "--max-model-len 1"),
        (ModelOptions, {"max_model_len": -5}, "--max-model-len -5"),
        (CacheConfig, {"block_size": 0}, "--block-size 0"),
        (CacheConfig, {"block_size": 24}, "power of two"),
        (CacheConfig, {"block_size": 512}, "--block-size 512"),
        (CacheConfig, {"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization 0.0"),
        (CacheConfig, {"gpu_memory_utilization": 90.0}, "a fraction"),
        (CacheConfig, {"gpu_memory_utilization": float("nan")}, "nan"),
        (CacheConfig, {"kv_cache_memory_bytes": 0}, "--kv-cache-memory-bytes 0"),
        (CacheConfig, {"num_gpu_blocks_override": 0}, "--num-gpu-blocks-override 0"),
        (SchedulerConfig, {"max_num_seqs": 0}, "--max-num-seqs 0"),
        (SchedulerConfig, {"max_num_batched_tokens": 0}, "--max-num-batched-tokens 0"),
        (ParallelConfig, {"tensor_parallel_size": 0}, "--tensor-parallel-size 0"),
        (ParallelConfig, {"pipeline_parallel_size": 0}, "--pipeline-parallel-size 0"),
        (ParallelConfig, {"enable_expert_parallel": True}, "--tensor-parallel-size, which is 1"),
        (ParallelConfig, {"nnodes": 2, "tensor_parallel_size": 3}, "--nnodes 2 must divide the 3 ranks"),
        (ParallelConfig, {"nnodes": 2, "node_rank": 2, "tensor_parallel_size": 2}, "--node-rank 2 must be from 0 to 1"),
        (ParallelConfig, {"nnodes": 2, "data_parallel_size": 2, "tensor_parallel_size": 2}, "leave one of them out"),
        (
            ParallelConfig,
            {"nnodes": 2, "distributed_executor_backend": "ray"},
            "--nnodes is for hosts that are started",
        ),
        (ParallelConfig, {"insecure_cluster": True}, "--insecure-cluster is about the hosts of --nnodes, which is 1"),
        (ParallelConfig, {"cluster_key_file": "f"}, "--cluster-key-file is about the hosts of --nnodes, which is 1"),
        (ParallelConfig, {"node_rank": 1}, "--node-rank 1"),
        (ParallelConfig, {"master_port": 65536}, "--master-port 65536"),
    ],
)
def test_a_value_that_can_not_be_met_is_refused_by_its_flag(cls: type, values: dict[str, object], part: str):
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert part in caught.value.message
    with pytest.raises(ConfigError):  # the same through the door that the command line uses
        msgspec.convert(values, cls, strict=False)


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_block_sizes_are_powers_of_two(block_size: int):
    assert CacheConfig(block_size=block_size).block_size == block_size


def test_a_config_is_never_changed_in_place():
    config = EngineConfig()
    with pytest.raises(AttributeError):
        config.log_level = "debug"  # type: ignore[misc]


def test_an_unknown_or_mistyped_value_is_refused():
    with pytest.raises(msgspec.ValidationError, match="max_nums"):
        msgspec.convert({"max_nums": 1}, SchedulerConfig)
    with pytest.raises(msgspec.ValidationError, match="fp4"):
        msgspec.convert({"kv_cache_dtype": "fp4"}, CacheConfig)
    with pytest.raises(msgspec.ValidationError, match="max_logprobs"):
        msgspec.convert({"model": {"max_logprobs": -2}}, EngineConfig)


def test_a_config_travels_to_an_executor_unchanged():
    config = EngineConfig(
        model=ModelOptions(model="a/b", served_model_name=("x", "y"), max_model_len=512, seed=-3),
        cache=CacheConfig(kv_cache_memory_bytes=2**40, kv_cache_dtype="bfloat16"),
        scheduler=SchedulerConfig(max_num_seqs=3, scheduling_policy="priority"),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_a_step_is_as_large_as_the_device_makes_worth_while():
    assert SchedulerConfig().step_limits("cpu") == StepLimits(max_num_seqs=128, max_num_batched_tokens=512)
    assert SchedulerConfig().step_limits("cuda") == StepLimits(max_num_seqs=256, max_num_batched_tokens=8192)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_given_size_of_a_step_holds_on_any_device(device: str):
    limits = SchedulerConfig(max_num_seqs=7).step_limits(device)
    assert limits == replace(SchedulerConfig().step_limits(device), max_num_seqs=7)
    limits = SchedulerConfig(max_num_batched_tokens=9).step_limits(device)
    assert limits == replace(SchedulerConfig().step_limits(device), max_num_batched_tokens=9)
