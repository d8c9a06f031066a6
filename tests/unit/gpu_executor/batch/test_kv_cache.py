"""Blocks name the same place in every layer."""

from __future__ import annotations

import pytest
import torch

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.batch.kv_cache import KVCache, bytes_per_block
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec
from pagewire.ipc.errors import MachineError

SPECS = [
    KVCacheSpec(kind=LayerKind.FULL, num_kv_heads=2, head_dim=8),
    KVCacheSpec(kind=LayerKind.SLIDING, num_kv_heads=3, head_dim=4, sliding_window=16),
]


def make_cache(num_blocks, dtype=torch.float16):
    return KVCache(
        SPECS, num_blocks=num_blocks, block_size=4, dtype=dtype, device=torch.device("cpu"), ops=select_ops("reference")
    )


def test_layers_have_the_shape_of_their_spec():
    shapes = [(tuple(layer.key.shape), tuple(layer.value.shape), layer.key.dtype) for layer in make_cache(5).layers]
    assert shapes == [((5, 2, 4, 8), (5, 2, 4, 8), torch.float16), ((5, 3, 4, 4), (5, 3, 4, 4), torch.float16)]


def test_bytes_of_a_block_are_those_of_its_tensors():
    cache = make_cache(1, torch.bfloat16)
    num_bytes = sum(layer.key.nbytes + layer.value.nbytes for layer in cache.layers)
    assert bytes_per_block(SPECS, 4, torch.bfloat16) == num_bytes


def test_copies_reach_every_layer_and_read_before_they_write():
    cache = make_cache(4)
    for layer in cache.layers:
        for tensor in (layer.key, layer.value):
            tensor.copy_(torch.arange(4).view(4, 1, 1, 1).expand_as(tensor))
    cache.copy_blocks([(0, 1), (1, 2)])
    for layer in cache.layers:
        for tensor in (layer.key, layer.value):
            assert tensor[:, 0, 0, 0].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(
    ("copies", "is_disjoint"), [([(0, 1), (0, 2)], True), ([(0, 1), (1, 2)], False), ([(1, 2), (0, 1)], False)]
)
def test_backend_is_told_whether_copies_may_run_in_any_order(copies, is_disjoint):
    told = []

    class WatchedOps(ReferenceOps):
        def copy_blocks(self, *args, is_disjoint=False):
            told.append(is_disjoint)

    cache = KVCache(
        SPECS, num_blocks=3, block_size=4, dtype=torch.float16, device=torch.device("cpu"), ops=WatchedOps()
    )
    cache.copy_blocks(copies)
    assert told == [is_disjoint] * len(SPECS)


@pytest.mark.parametrize("copy", [(0, 4), (-1, 2)])
def test_copy_that_leaves_the_pool_is_a_bug(copy):
    with pytest.raises(AssertionError, match="leave the pool"):
        make_cache(4).copy_blocks([copy])


def test_blocks_that_are_never_used_are_never_touched():
    host = HostLimits()
    before = host.resident_bytes()
    num_blocks = 2**30 // bytes_per_block(SPECS, 4, torch.float16)
    cache = make_cache(num_blocks)
    cache.layers[0].key[0].fill_(1.0)
    assert host.resident_bytes() - before < 64 * 2**20


def test_pool_that_the_machine_does_not_give_is_a_machine_error():
    with pytest.raises(MachineError, match="--gpu-memory-utilization"):
        make_cache(2**46)
