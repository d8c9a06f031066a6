from __future__ import annotations

import torch

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.kernels.reference.kv_cache import copy_blocks, store_kv
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec
from tests.support.paged import nan_filled_cache

SPEC = KVCacheSpec(kind=LayerKind.FULL, num_kv_heads=2, head_dim=8)


def test_tokens_land_in_their_slots_and_nowhere_else() -> None:
    cache = nan_filled_cache(SPEC, 3, block_size=4, dtype=torch.float16)
    key, value = torch.randn(2, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    store_kv(key, value, cache, torch.tensor([9, -1, 2]))
    assert torch.equal(cache.key[2, :, 1], key[0].half())
    assert torch.equal(cache.value[0, :, 2], value[2].half())
    assert int((~cache.key.isnan()).sum()) == int((~cache.value.isnan()).sum()) == 2 * 2 * 8


def test_copies_read_all_sources_before_any_write() -> None:
    cache = nan_filled_cache(SPEC, 4)
    for block in range(4):
        cache.key[block], cache.value[block] = block, 10 + block
    copy_blocks(cache, torch.tensor([0, 1, 1]), torch.tensor([1, 2, 3]))
    assert cache.key[:, 0, 0, 0].tolist() == [0, 0, 1, 1]
    assert cache.value[:, 1, 3, 2].tolist() == [10, 10, 11, 11]


def test_spec_states_the_bytes_of_a_token() -> None:
    assert SPEC.bytes_per_token(torch.float16) == 2 * 2 * 8 * 2
