"""One budget: weights, runtime, work space and KV together stay inside the share, and inside what is free."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.devices.base import DeviceMemory
from pagewire.gpu_executor.memory import (
    MemoryUse,
    blocks_ever_needed,
    check_weights_fit,
    estimate_workspace,
    size_pool,
)
from pagewire.ipc.config import CacheConfig, StepLimits
from pagewire.ipc.errors import MachineError
from tests.support.tiny_model import tiny_checkpoint

GIB, MIB = 2**30, 2**20
MEMORY = DeviceMemory(total_bytes=16 * GIB, free_bytes=14 * GIB, source="RAM")
USE = MemoryUse(weights=GIB, runtime=GIB // 4, workspace=GIB // 2)


def pool(cache=None, memory=MEMORY, use=USE, max_blocks=10**9, free_share=None):
    return size_pool(cache or CacheConfig(), memory, use, block_bytes=MIB, max_blocks=max_blocks, free_share=free_share)


def test_pool_takes_what_the_share_leaves():
    budget = pool(CacheConfig(gpu_memory_utilization=0.5))
    assert budget.num_blocks * MIB == 8 * GIB - USE.weights - USE.runtime - USE.workspace
    assert budget.limit == "--gpu-memory-utilization"


def test_pool_never_takes_more_than_the_share_of_what_is_free():
    budget = pool(memory=DeviceMemory(total_bytes=16 * GIB, free_bytes=4 * GIB, source="RAM"))
    assert budget.num_blocks == int(0.9 * 4 * GIB - USE.workspace) // MIB
    assert budget.limit == "free memory"


def test_pool_takes_nearly_all_that_is_free_where_others_have_theirs_already():
    shared = DeviceMemory(total_bytes=16 * GIB, free_bytes=4 * GIB, source="of NVIDIA H200")
    budget = pool(memory=shared, use=replace(USE, graphs=GIB), free_share=0.99)
    assert budget.num_blocks == int(0.99 * 4 * GIB - USE.workspace - GIB) // MIB
    assert budget.limit == "free memory"


def test_graphs_are_part_of_the_share_and_of_the_line():
    with_graphs = replace(USE, graphs=GIB)
    budget = pool(CacheConfig(gpu_memory_utilization=0.5), use=with_graphs)
    assert budget.num_blocks * MIB == 8 * GIB - USE.total - GIB
    assert "work space 0.50 GiB, CUDA graphs 1.00 GiB, KV cache" in budget.describe()
    with pytest.raises(MachineError, match=r"CUDA graphs \(1\.00 GiB\) and work space"):
        pool(CacheConfig(gpu_memory_utilization=0.1), use=with_graphs)
    with pytest.raises(MachineError, match=r"the work space and the CUDA graphs take 1\.50 GiB"):
        pool(CacheConfig(kv_cache_memory_bytes=13 * GIB), use=with_graphs)


def test_pool_is_no_larger_than_all_sequences_at_their_longest():
    assert pool(max_blocks=100).num_blocks == 100
    assert blocks_ever_needed(max_num_seqs=3, max_model_len=33, block_size=16) == 3 * 3 + 1


@pytest.mark.parametrize(
    ("options", "num_blocks"),
    [({"num_gpu_blocks_override": 7}, 7), ({"kv_cache_memory_bytes": 9 * MIB + 5}, 9)],
)
def test_flags_fix_the_pool_whatever_the_share(options, num_blocks):
    assert pool(CacheConfig(gpu_memory_utilization=0.01, **options)).num_blocks == num_blocks


@pytest.mark.parametrize("options", [{"num_gpu_blocks_override": 14 * 1024}, {"kv_cache_memory_bytes": 14 * GIB}])
def test_fixed_pool_that_is_not_free_is_refused_by_its_flag(options):
    with pytest.raises(MachineError, match=next(iter(options)).replace("_", "-")):
        pool(CacheConfig(**options))


def test_pool_smaller_than_a_block_is_refused():
    with pytest.raises(MachineError, match="--block-size"):
        pool(CacheConfig(kv_cache_memory_bytes=MIB - 1))


def test_no_room_for_a_block_names_numbers_and_remedies():
    with pytest.raises(MachineError) as caught:
        pool(CacheConfig(gpu_memory_utilization=0.1))
    for part in (
        "0.1 of 16.00 GiB RAM",
        "14.00 GiB are free",
        "weights (1.00 GiB)",
        "1.00 MiB",
        "--max-num-batched-tokens",
    ):
        assert part in caught.value.message


def test_budget_is_one_line_with_all_its_parts():
    line = pool(max_blocks=2048).describe()
    assert line == (
        "16.00 GiB RAM x 0.9: weights 1.00 GiB, runtime 0.25 GiB, work space 0.50 GiB, KV cache 2.00 GiB = 2,048 "
        "blocks of 16 tokens at 64.0 KiB a token (limited by --max-num-seqs x --max-model-len)"
    )


def test_work_space_grows_with_the_largest_step():
    model = load_model_config(tiny_checkpoint())
    large = msgspec.structs.replace(model, vocab_size=150_000, tokenizer_size=150_000)
    small = StepLimits(max_num_seqs=64, max_num_batched_tokens=512)
    base = estimate_workspace(large, small, torch.float32)
    # Logits of 64 rows exist twice while they are processed.
    assert base > 2 * 64 * 150_000 * 4
    for options in ({"max_num_seqs": 256}, {"max_num_batched_tokens": 4096}):
        assert estimate_workspace(large, msgspec.structs.replace(small, **options), torch.float32) > base


def test_work_space_holds_what_experts_compute_though_a_dense_layer_is_small():
    model = load_model_config(tiny_checkpoint("qwen3_moe"))
    limits, mixture = StepLimits(max_num_seqs=4, max_num_batched_tokens=64), model.mixture
    assert mixture is not None
    sizes = [
        estimate_workspace(
            msgspec.structs.replace(model, mixture=msgspec.structs.replace(mixture, intermediate_size=size)),
            limits, torch.float32, num_ranks=2,
        )
        for size in (4096, 8192)
    ]  # fmt: skip
    assert sizes[1] - sizes[0] >= 4 * 4 * 4096 * limits.max_num_batched_tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_work_space_holds_the_widest_matrix_while_it_is_widened(dtype):
    model = msgspec.structs.replace(load_model_config(tiny_checkpoint()), vocab_size=150_000)
    limits = StepLimits(max_num_seqs=64, max_num_batched_tokens=512)
    widened = 150_000 * model.hidden_size * 4
    assert estimate_workspace(model, limits, dtype) == estimate_workspace(model, limits, torch.float32) + widened
    assert estimate_workspace(model, limits, dtype, widens=False) == estimate_workspace(model, limits, torch.float32)


def test_weights_that_can_not_fit_are_refused_before_they_are_read():
    check_weights_fit(4 * GIB, "float32", 0.9, MEMORY)
    with pytest.raises(MachineError, match=r"take 4\.00 GiB as float32; 1\.60 GiB may be used"):
        check_weights_fit(4 * GIB, "float32", 0.1, MEMORY)


def test_executors_of_one_host_divide_its_memory():
    memory = MEMORY.divided(2)
    assert (memory.total_bytes, memory.free_bytes, memory.source) == (8 * GIB, 7 * GIB, "RAM for each of 2 executors")
    assert MEMORY.divided(1) is MEMORY
    budget = pool(CacheConfig(gpu_memory_utilization=0.5), memory=memory)
    assert budget.num_blocks * MIB == 4 * GIB - USE.total
    assert budget.describe().startswith("8.00 GiB RAM for each of 2 executors x 0.5: ")


def test_ranks_that_share_layers_need_less_work_space_each_and_gather_what_all_have():
    model = load_model_config(tiny_checkpoint(num_kv_heads=2))
    large = msgspec.structs.replace(model, hidden_size=1024, intermediate_size=8192)
    limits = StepLimits(max_num_seqs=4, max_num_batched_tokens=4096)
    whole, half = (estimate_workspace(large, limits, torch.float32, num_ranks=ranks) for ranks in (1, 2))
    assert half < 0.7 * whole
    narrow = msgspec.structs.replace(large, intermediate_size=1)
    whole, of_16 = (estimate_workspace(narrow, limits, torch.float32, num_ranks=ranks) for ranks in (1, 16))
    assert of_16 - whole > 4096 * 16 * 1024 * 4 / 2
