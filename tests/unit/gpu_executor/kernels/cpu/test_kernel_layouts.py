"""What the kernels don't multiply as it is becomes what they do, within the stated loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.kernel_layouts import in_kernel_layouts
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.gpu_executor.quantization.round_to_nearest import round_to_int8
from tests.support.weights import permuted, random_dense, random_fp8, random_int4, random_int8


def matrix_of(weight: LinearWeight) -> Tensor:
    """Return the matrix that a weight's kernel layouts stand for, columns in the order of input channels."""
    parts, order = in_kernel_layouts(weight)
    columns = torch.cat([dequantize(as_packed(part)) for part in parts])
    if order is None:
        return columns
    matrix = torch.empty_like(columns)
    matrix[:, order.long()] = columns
    return matrix


def as_packed(part: DenseWeight | Int4Weight | Int8Weight) -> LinearWeight:
    """Return a part as the kernels read it: its own permutation does not count."""
    return part if isinstance(part, DenseWeight) else replace(part, permutation=None)


def expected(weight: StackedWeight) -> Tensor:
    return torch.cat([dequantize(part) for part in weight.parts])


def test_layouts_that_kernels_know_stay_what_they_are():
    weight = StackedWeight((random_int4(4, 64), random_dense(2, 64), random_int8(3, 64, 16)))
    parts, order = in_kernel_layouts(weight)
    assert order is None
    assert all(part is given for part, given in zip(parts, weight.parts, strict=True))


def test_dense_parts_follow_the_permutation_of_grouped_ones():
    weight = StackedWeight((random_dense(5, 64, torch.bfloat16, has_bias=True), permuted(random_int4(8, 64))))
    parts, order = in_kernel_layouts(weight)
    assert torch.equal(order, weight.parts[1].permutation)
    assert [type(part) for part in parts] == [DenseWeight, Int4Weight]
    assert parts[0].bias is weight.parts[0].bias
    assert torch.equal(matrix_of(weight), expected(weight))


@pytest.mark.parametrize("kept_is_permuted", [True, False])
def test_parts_of_another_order_become_half_precision(kept_is_permuted: bool):
    kept, other = random_int4(20, 64), random_int8(9, 64, has_bias=True)
    kept, other = (permuted(kept), other) if kept_is_permuted else (kept, permuted(other))
    weight = StackedWeight((other, kept, permuted(random_int4(3, 64, seed=1), seed=1)))
    parts, _ = in_kernel_layouts(weight)
    assert [type(part) for part in parts] == [DenseWeight, Int4Weight, DenseWeight]
    assert parts[0].weight.dtype == torch.float16
    assert parts[0].bias is other.bias
    torch.testing.assert_close(matrix_of(weight), expected(weight), rtol=1 / 2048, atol=3e-8)


def test_what_half_precision_can_not_hold_becomes_float32():
    large = random_int8(4, 32)
    large.scale[0, 0] = 60000.0
    weight = StackedWeight((permuted(random_int4(8, 32)), large))
    parts, _ = in_kernel_layouts(weight)
    assert parts[1].weight.dtype == torch.float32
    assert torch.equal(matrix_of(weight), expected(weight))


@pytest.mark.parametrize("tile", [(1, 96), (128, 128), (40, 96)])
def test_8_bit_floats_become_8_bit_integers(tile: tuple[int, int]):
    weight = random_fp8(40, 96, *tile, has_bias=True)
    parts, order = in_kernel_layouts(weight)
    assert order is None
    assert isinstance(parts[0], Int8Weight)
    assert parts[0].bias is weight.bias
    groups = dequantize(weight).view(40, 3, 32)
    largest = groups.abs().amax(dim=2, keepdim=True)
    # Half a step of the integers, and what the scale's rounding moves the largest by.
    assert bool(((matrix_of(weight).view(40, 3, 32) - groups).abs() <= largest * (1 / 254 + 1 / 1024)).all())


@pytest.mark.parametrize("tile", [(1, 64), (128, 64), (5000, 64)])
def test_blocks_of_rows_give_what_the_whole_weight_would(tile: tuple[int, int]):
    weight = random_fp8(5000, 64, *tile)
    (part,), _ = in_kernel_layouts(weight)
    whole = round_to_int8(dequantize(weight))
    assert torch.equal(part.codes, whole.codes)
    assert torch.equal(part.scale, whole.scale)
    other = random_int4(5000, 64)
    parts, _ = in_kernel_layouts(StackedWeight((other, permuted(random_int4(5001, 64)))))
    order = parts[1].permutation.long()
    assert torch.equal(parts[0].weight, dequantize(other).to(torch.float16)[:, order])


def test_8_bit_floats_in_no_whole_groups_become_bfloat16():
    weight = random_fp8(7, 70, 7, 70, has_bias=True)
    parts, _ = in_kernel_layouts(weight)
    assert isinstance(parts[0], DenseWeight)
    assert parts[0].weight.dtype == torch.bfloat16
    torch.testing.assert_close(matrix_of(weight), dequantize(weight), rtol=1 / 256, atol=0)


def test_unknown_layouts_are_refused():
    class Other(LinearWeight):
        out_features = in_features = 1

    with pytest.raises(TypeError, match="Other"):
        in_kernel_layouts(Other())
