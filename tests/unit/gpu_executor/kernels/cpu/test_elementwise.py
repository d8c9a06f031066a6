"""Compiled kernels of one row give the reference's numbers, at sizes that fill no vector too."""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.layouts import RotaryTable
from pagewire.gpu_executor.kernels.reference.kv_cache import round_to_8_bits
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache

SIZES = [1, 7, 8, 31, 33, 64, 576, 1000]


@pytest.fixture(scope="module", params=["portable", "auto"])
def ops(request: pytest.FixtureRequest) -> CpuOps:
    try:
        return CpuOps(2, request.param)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(left: torch.Tensor, right: torch.Tensor) -> None:
    """Within about four units in the last place."""
    torch.testing.assert_close(left, right, atol=1e-7, rtol=5e-7)


@pytest.mark.parametrize("size", SIZES)
def test_norms_give_the_reference(ops: CpuOps, size: int) -> None:
    x, residual, weight = normal(5, size), 10 * normal(5, size, seed=1), normal(size, seed=2)
    assert_close(ops.rms_norm(x, weight, 1e-5), ReferenceOps().rms_norm(x, weight, 1e-5))
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, ops.rms_norm(total, weight, 1e-5))


def test_norm_of_zeros_is_zero(ops: CpuOps) -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 33), torch.ones(33), 1e-5), torch.zeros(2, 33))


@pytest.mark.parametrize("size", SIZES)
def test_silu_gives_the_reference(ops: CpuOps, size: int) -> None:
    gate_up = torch.cat([20 * normal(4, size), normal(4, size, seed=1)], dim=1)
    assert_close(ops.silu_and_mul(gate_up), ReferenceOps().silu_and_mul(gate_up))


@pytest.mark.parametrize("size", SIZES)
def test_gelu_gives_the_reference(ops: CpuOps, size: int) -> None:
    gate_up = torch.cat([3 * normal(4, size), normal(4, size, seed=1)], dim=1)
    assert_close(ops.gelu_tanh_and_mul(gate_up), ReferenceOps().gelu_tanh_and_mul(gate_up))


def test_gelu_meets_its_limits(ops: CpuOps) -> None:
    gate = torch.tensor([[0.0, -0.0, 20.0, -4.0, -20.0, 3e38, -3e38, math.inf, math.nan]])
    out = ops.gelu_tanh_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))[0]
    assert out[:3].tolist() == [0.0, 0.0, 20.0]
    assert -1e-3 < out[3] < -1e-5
    assert out[4:8].tolist() == [0.0, gate[0, 5].item(), 0.0, math.inf]
    assert out[8].isnan()


def test_silu_meets_its_limits(ops: CpuOps) -> None:
    gate = torch.tensor([[0.0, -0.0, 80.0, -80.0, 100.0, -100.0, 3e38, -3e38, math.inf, math.nan]])
    out = ops.silu_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))[0]
    assert out[:3].tolist() == [0.0, 0.0, 80.0]
    assert -1e-30 < out[3] < 0
    assert out[4:9].tolist() == [100.0, 0.0, gate[0, 6].item(), 0.0, math.inf]
    assert out[9].isnan()


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 128), (24, 24), (80, 32), (6, 6), (40, 14)])
def test_rotation_has_the_bits_of_the_reference(ops: CpuOps, head_dim: int, rotary_dim: int) -> None:
    angles = 100 * normal(50, rotary_dim // 2)
    table = RotaryTable(angles.cos(), angles.sin())
    query, key = normal(7, 6, head_dim), normal(7, 2, head_dim, seed=1)
    positions = torch.tensor([0, 49, 3, 3, 17, 20, 1])
    expected = ReferenceOps().rotary(query, key, positions, table)
    assert all(torch.equal(a, b) for a, b in zip(ops.rotary(query, key, positions, table), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (6, 16), (40, 1), (24, 7), (128, 256)])
def test_cache_holds_keys_and_values_rounded_to_nearest_even(
    ops: CpuOps, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    num_blocks, num_kv_heads = -(-40 // block_size) + 1, 3
    shape = ops.kv_cache_shape(KVCacheSpec(LayerKind.FULL, num_kv_heads, head_dim), num_blocks, block_size)
    cache = LayerKVCache(*(torch.full(part, torch.nan, dtype=dtype) for part in shape))
    key, value = 100 * normal(30, num_kv_heads, head_dim), normal(30, num_kv_heads, head_dim, seed=1)
    special = [0.0, -0.0, 1e-8, 6e-8, 65519.0, 65520.0, 3e38, math.inf, -math.inf, 1 + 2**-11, 1 + 3 * 2**-11, 1e-40]
    key.view(-1)[: len(special)] = torch.tensor(special)
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(0))[:30]
    slots[4] = -1  # a token that is not stored
    ops.store_kv(key, value, cache, slots)

    kept = slots >= 0
    keys = cache.key.permute(0, 3, 1, 2).reshape(-1, num_kv_heads, head_dim)
    values = cache.value.permute(0, 2, 1, 3).reshape(-1, num_kv_heads, head_dim)
    assert torch.equal(keys[slots[kept]], key[kept].to(dtype))
    assert torch.equal(values[slots[kept]], value[kept].to(dtype))
    for stored in (keys, values):
        assert stored.isnan().all(dim=(1, 2)).sum() == len(stored) - kept.sum()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(("scale", "head_dim"), [(1.0, 64), (0.37, 70)])
def test_8_bit_cache_holds_the_nearest_numbers_or_the_largest(
    ops: CpuOps, scale: float, head_dim: int, dtype: torch.dtype
) -> None:
    # Every number of the dtype, what is halfway between two, and their neighbours; what is beyond all of them.
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()]
    halfway = (numbers[1:] + numbers[:-1]) / 2
    exact = torch.cat([numbers, halfway, torch.tensor([449.0, 464.0, 1e5, 3e38, math.inf, math.nan])])
    near = [exact, exact.nextafter(torch.tensor(math.inf)), exact.nextafter(torch.tensor(0.0))]
    key = torch.cat([*near, *(-part for part in near)])
    key = torch.cat([key, 3 * normal(-len(key) % head_dim + head_dim)]).view(-1, 1, head_dim) * scale
    value = key.flip(0)
    num_blocks = -(-len(key) // 16)
    shape = ops.kv_cache_shape(KVCacheSpec(LayerKind.FULL, 1, head_dim), num_blocks, 16)
    cache = LayerKVCache(*(torch.zeros(part).to(dtype) for part in shape), scale, scale)
    ops.store_kv(key, value, cache, torch.arange(len(key)))

    keys = cache.key.float().permute(0, 3, 1, 2).reshape(-1, 1, head_dim)[: len(key)]
    values = cache.value.float().permute(0, 2, 1, 3).reshape(-1, 1, head_dim)[: len(key)]
    for stored, given in ((keys, key), (values, value)):
        expected = round_to_8_bits(given, dtype, scale).float()
        assert torch.equal(stored.view(torch.int32), expected.view(torch.int32))  # zeros keep their sign


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_blocks_are_copied_whole(ops: CpuOps, dtype: torch.dtype) -> None:
    shape = ops.kv_cache_shape(KVCacheSpec(LayerKind.FULL, 2, 8), 6, 16)
    cache = LayerKVCache(*(normal(*part, seed=i).to(dtype) for i, part in enumerate(shape)))
    before = [part.float() for part in cache[:2]]
    ops.copy_blocks(cache, torch.tensor([4, 1]), torch.tensor([0, 5]))
    for part, old in zip(cache[:2], before, strict=True):
        assert torch.equal(part.float(), old[[4, 1, 2, 3, 4, 1]])


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 511, 512, 513, 49152])
def test_argmax_is_the_first_of_the_largest(ops: CpuOps, size: int) -> None:
    row = normal(size)
    largest, index = ops.argmax(row)
    assert (largest, index) == (row.max().item(), row.argmax().item())
    tied = torch.full((size,), -3.0)
    tied[size // 2 :] = 2.5
    assert ops.argmax(tied) == (2.5, size // 2)


@pytest.mark.parametrize("place", [0, 5, 600, 1023])
def test_argmax_reports_a_nan_and_lives_with_infinities(ops: CpuOps, place: int) -> None:
    row = torch.full((1024,), -math.inf)
    assert ops.argmax(row) == (-math.inf, 0)
    row[place] = 3e38
    assert ops.argmax(row)[1] == place
    row[place] = math.inf
    assert ops.argmax(row) == (math.inf, place)
    row[place] = math.nan
    assert math.isnan(ops.argmax(row)[0])


def test_rows_have_the_same_bits_alone_and_together(ops: CpuOps) -> None:
    x, weight, gate_up = normal(19, 577), normal(577, seed=1), 5 * normal(19, 2 * 97)
    normed, gated, gelu = ops.rms_norm(x, weight, 1e-5), ops.silu_and_mul(gate_up), ops.gelu_tanh_and_mul(gate_up)
    for row in range(19):
        assert torch.equal(ops.rms_norm(x[row : row + 1], weight, 1e-5)[0], normed[row])
        assert torch.equal(ops.silu_and_mul(gate_up[row : row + 1])[0], gated[row])
        assert torch.equal(ops.gelu_tanh_and_mul(gate_up[row : row + 1])[0], gelu[row])
