from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import Fp8Weight, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference.dequantize import bias_of, dequantize, dequantize_rows
from tests.support.weights import random_dense, random_fp8, random_int4, random_int8


def test_int4_channel_is_scale_times_its_nibble_plus_minimum() -> None:
    # Channel j of a group in the low half of byte j, channel j + 16 in the high half.
    codes = torch.arange(16, dtype=torch.uint8).repeat(2) | torch.arange(15, -1, -1, dtype=torch.uint8).repeat(2) << 4
    scale, minimum = torch.tensor([[2.0, 0.5]]).half(), torch.tensor([[-3.0, 1.0]]).half()
    weight = Int4Weight(codes.view(1, 32), scale, minimum, 64)
    group = torch.cat((torch.arange(16.0), torch.arange(15.0, -1.0, -1.0)))
    assert torch.equal(dequantize(weight)[0], torch.cat((2 * group - 3, 0.5 * group + 1)))


def test_padding_channels_are_left_out() -> None:
    assert dequantize(random_int4(3, 40)).shape == (3, 40)


@pytest.mark.parametrize("group_size", [16, 32])
def test_int8_channel_is_scale_times_code_plus_minimum(group_size: int) -> None:
    codes = torch.arange(-32, 32, dtype=torch.int8).view(1, 64)
    scale = torch.arange(1.0, 64 // group_size + 1).view(1, -1).half()
    expected = codes.float() * scale.float().repeat_interleave(group_size, dim=1)
    assert torch.equal(dequantize(Int8Weight(codes, scale)), expected)
    shifted = dequantize(Int8Weight(codes, scale, -scale))
    assert torch.equal(shifted, expected - scale.float().repeat_interleave(group_size, dim=1))


@pytest.mark.parametrize(("tile_rows", "tile_columns"), [(5, 300), (1, 300), (2, 128)])
def test_fp8_channel_is_code_times_the_scale_of_its_tile(tile_rows: int, tile_columns: int) -> None:
    codes = torch.linspace(-448, 448, 5 * 300).view(5, 300).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-5 // tile_rows), -(-300 // tile_columns), generator=torch.Generator().manual_seed(0))
    out = dequantize(Fp8Weight(codes, scale, tile_rows, tile_columns), torch.float64)
    for row, column in ((0, 0), (1, 127), (2, 128), (4, 299)):
        factor = scale[row // tile_rows, column // tile_columns].double()
        assert out[row, column] == codes[row, column].double() * factor


def test_stack_is_its_parts_below_each_other() -> None:
    parts = (
        random_int4(5, 64, has_bias=True),
        random_int8(3, 64, 16),
        random_dense(2, 64, torch.bfloat16, has_bias=True),
        random_fp8(2, 64, 2, 64),
    )
    stack = StackedWeight(parts)
    assert torch.equal(dequantize(stack), torch.cat([dequantize(part) for part in parts]))
    bias = bias_of(stack)
    assert bias is not None
    assert parts[0].bias is not None
    assert bias[5:8].tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(bias[:5], parts[0].bias)
    assert bias_of(StackedWeight(parts[1:2])) is None


@pytest.mark.parametrize(
    "weight",
    [random_int4(9, 40), random_int8(9, 64, 16, has_minimum=True), random_dense(9, 7), random_fp8(9, 130, 4, 128)],
    ids=lambda w: type(w).__name__,
)
def test_looked_up_rows_are_those_of_the_matrix(weight: LinearWeight) -> None:
    rows = torch.tensor([8, 0, 8, 3])
    assert torch.equal(dequantize_rows(weight, rows), dequantize(weight)[rows])


def test_a_stack_is_no_embedding() -> None:
    with pytest.raises(TypeError, match="StackedWeight"):
        dequantize_rows(StackedWeight((random_int4(2, 32), random_int8(2, 32))), torch.tensor([0]))
