from __future__ import annotations

import pytest
import torch

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.kernels.reference.kv_cache import copy_blocks, round_to_8_bits, store_kv
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache
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


FP8_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_8_bit_numbers_are_rounded_after_the_division_by_the_scale(dtype: torch.dtype) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()]
    assert torch.equal(round_to_8_bits(numbers * 0.125, dtype, 0.125).float(), numbers)
    between = (numbers.unique()[1:] + numbers.unique()[:-1]) / 2
    rounded = round_to_8_bits(between * 4, dtype, 4.0)
    assert bool((rounded.view(torch.uint8) & 1 == 0).all()), "ties go to the even neighbour"


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_8_bit_numbers_end_at_the_largest_one_and_keep_nan(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    rounded = round_to_8_bits(torch.tensor([1e9, -torch.inf, torch.nan, largest * 1.01]), dtype, 1.0).float()
    assert rounded[[0, 1, 3]].tolist() == [largest, -largest, largest]
    assert bool(rounded[2].isnan())


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_8_bit_cache_keeps_keys_and_values_by_scales_of_their_own(dtype: torch.dtype) -> None:
    shape = (3, 2, 4, 8)
    poison = torch.full(shape, torch.nan)
    cache = LayerKVCache(poison.to(dtype), poison.to(dtype), key_scale=0.5, value_scale=2.0)
    key, value = torch.randn(2, 2, 2, 8, generator=torch.Generator().manual_seed(0))
    store_kv(key, value, cache, torch.tensor([9, -1]))
    assert torch.equal(cache.key[2, :, 1].float(), (key[0] / 0.5).to(dtype).float())
    assert torch.equal(cache.value[2, :, 1].float(), (value[0] / 2.0).to(dtype).float())
    assert int((~cache.key.float().isnan()).sum()) == 2 * 8


@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_8_bit_blocks_are_copied_bit_for_bit(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    cache = LayerKVCache(bits.clone().view(dtype), bits.clone().view(dtype))
    copy_blocks(cache, torch.tensor([0, 3]), torch.tensor([3, 1]))
    for part in (cache.key, cache.value):
        assert torch.equal(part.view(torch.uint8), bits[torch.tensor([0, 3, 2, 0])])
