from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.reference import kv_cache as reference
from pagewire.gpu_executor.kernels.triton.store_kv import store_kv
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from tests.support.planted import PLANTED_ERRORS, Planted, assert_notices

SLOTS = torch.tensor([9, -1, 2, 0, 15, -1, 11])


def _cache(num_kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int) -> LayerKVCache:
    shape = (16 // block_size, num_kv_heads, block_size, head_dim)
    key, value = (torch.full(shape, torch.nan).to(dtype) for _ in range(2))
    scales = (0.01, 3.0) if dtype.itemsize == 1 else (1.0, 1.0)
    return LayerKVCache(key, value, *scales)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _rows(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(len(SLOTS), num_kv_heads, head_dim, generator=generator) * 9).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize(
    ("heads", "dtype", "kv_dtype"),
    [
        ((1, 6), torch.float32, torch.float32),
        ((2, 64), torch.float16, torch.float16),
        ((3, 80), torch.bfloat16, torch.bfloat16),
        ((2, 96), torch.bfloat16, torch.float16),
        ((1, 128), torch.float32, torch.float16),  # the interpreter cuts off where it should round to bfloat16
        ((40, 128), torch.float16, torch.float16),
        ((3, 48), torch.float16, torch.float8_e4m3fn),
        ((2, 256), torch.bfloat16, torch.float8_e5m2),
        ((1, 5), torch.float32, torch.float8_e4m3fn),
    ],
)
def test_tokens_land_in_their_slots_as_the_reference_puts_them(
    heads: tuple[int, int], dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int
) -> None:
    key, value = _rows(*heads, dtype)
    expected, actual = _cache(*heads, kv_dtype, block_size), _cache(*heads, kv_dtype, block_size)
    reference.store_kv(key, value, expected, SLOTS)
    store_kv(key, value, actual, SLOTS)
    assert torch.equal(_bits(actual.key), _bits(expected.key))
    assert torch.equal(_bits(actual.value), _bits(expected.value))


def test_heads_of_a_fused_projection_are_read_where_they_are() -> None:
    key, value = _rows(2, 16, torch.float16)
    fused = torch.cat([torch.full_like(key, torch.nan), key, value], dim=1)
    expected, actual = _cache(2, 16, torch.float16, 8), _cache(2, 16, torch.float16, 8)
    store_kv(key, value, expected, SLOTS)
    store_kv(fused[:, 2:4], fused[:, 4:], actual, SLOTS)
    assert torch.equal(_bits(actual.key), _bits(expected.key))
    interleaved = key.transpose(1, 2).contiguous().transpose(1, 2)
    store_kv(interleaved, value, actual, SLOTS)
    assert torch.equal(_bits(actual.key), _bits(expected.key))


def test_a_step_without_tokens_writes_nothing() -> None:
    cache = _cache(2, 16, torch.float16, 8)
    store_kv(torch.empty(0, 2, 16), torch.empty(0, 2, 16), cache, torch.empty(0, dtype=torch.int64))
    assert bool(cache.key.isnan().all())


def test_comparison_of_bits_notices_planted_errors() -> None:
    key, value = _rows(2, 16, torch.float16)
    expected, actual = _cache(2, 16, torch.float16, 8), _cache(2, 16, torch.float16, 8)
    reference.store_kv(key, value, expected, SLOTS)
    store_kv(key, value, actual, SLOTS)

    def compare(expected: Tensor, actual: Tensor) -> None:
        assert torch.equal(_bits(actual), _bits(expected))

    rows_of_a_token = expected.key[1, :, 1]
    last_bit = Planted("the last bit of a number", lambda rows: _bits(rows).view(-1)[3].bitwise_xor_(1))
    assert_notices(
        functools.partial(compare, rows_of_a_token.contiguous()),
        actual.key[1, :, 1].contiguous(),
        planted=(*PLANTED_ERRORS, last_bit),
    )
