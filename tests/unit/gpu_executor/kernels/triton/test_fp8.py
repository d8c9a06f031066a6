from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from pagewire.gpu_executor.kernels.reference.kv_cache import round_to_8_bits
from pagewire.gpu_executor.kernels.triton.fp8 import E4M3, NO_FP8, as_bits, fp8_format, from_fp8, to_fp8

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


@triton.jit
def _widen(bits, out, SIZE: tl.constexpr, FORMAT: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(out + offsets, from_fp8(tl.load(bits + offsets), FORMAT, False))


@triton.jit
def _narrow(values, out, SIZE: tl.constexpr, FORMAT: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + offsets, to_fp8(tl.load(values + offsets), FORMAT))


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(values.shape, dtype=torch.uint8)
    _narrow[(values.numel() // 4096,)](values, out, 4096, fp8_format(dtype))
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_of_the_256_bit_patterns_widens_to_its_number(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    out = torch.full((256,), 7.0, dtype=torch.float16)
    _widen[(1,)](bits, out, 256, fp8_format(dtype))
    expected = bits.view(dtype).float()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.float().nan_to_num(nan=0.0, posinf=1e6, neginf=-1e6), expected.nan_to_num(0.0, 1e6, -1e6))
    assert torch.equal(out.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float16_rounds_as_the_reference_rounds_it(dtype: torch.dtype) -> None:
    values = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    got, expected = _narrowed(values, dtype), round_to_8_bits(values, dtype, 1.0).view(torch.uint8)
    is_number = ~values.isnan()
    assert torch.equal(got[is_number], expected[is_number])
    assert bool(got[~is_number].view(dtype).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_and_their_neighbours_round_to_even(dtype: torch.dtype) -> None:
    """Halfway between two neighbouring numbers, and one float32 step to either side of it."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = codes[codes.isfinite()].unique()
    middles = (numbers[1:] + numbers[:-1]) / 2
    values = torch.cat(
        [middles, middles.nextafter(torch.tensor(torch.inf)), middles.nextafter(torch.tensor(-torch.inf))]
    )
    values = torch.cat([values, values.new_zeros(4096 - len(values))])
    assert torch.equal(_narrowed(values, dtype), round_to_8_bits(values, dtype, 1.0).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1e30, torch.inf, 500.0, 60000.0])
def test_what_is_beyond_the_largest_number_becomes_it(value: float, dtype: torch.dtype) -> None:
    values = torch.full((4096,), value)
    values[1::2] *= -1
    largest = torch.finfo(dtype).max
    got = _narrowed(values, dtype).view(dtype).float()
    assert torch.equal(got, values.clamp(-largest, largest).to(dtype).float())


def test_format_follows_the_dtype() -> None:
    assert [fp8_format(dtype) for dtype in (torch.float8_e4m3fn, torch.float16)] == [E4M3, NO_FP8]
    assert as_bits(torch.zeros(2, dtype=torch.float8_e5m2)).dtype == torch.uint8
    assert as_bits(torch.zeros(2)).dtype == torch.float32
