"""Rows that are unpacked are those of the matrix, all or some."""

from __future__ import annotations

import functools

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import LinearWeight
from pagewire.gpu_executor.kernels.reference import dequantize as reference
from tests.support.packed_rows import assert_rows, each_dtype, each_weight
from tests.support.planted import assert_notices
from tests.support.weights import random_int8

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.dequantize import dequantize
from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight, pack_int8
from pagewire.gpu_executor.kernels.triton.products import prepare_weight

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@each_dtype
@each_weight
def test_unpacked_rows_are_those_of_the_matrix(weight: LinearWeight, dtype: torch.dtype) -> None:
    packed, expected = prepare_weight(weight, torch.device("cpu")), reference.dequantize(weight)
    assert isinstance(packed, PackedWeight)
    for first, last in ((0, weight.out_features), (3, 69)):
        compare = functools.partial(assert_rows, expected[first:last])
        assert_notices(compare, dequantize(packed, first, last - first, dtype))


def test_float32_rows_have_the_bits_of_the_reference() -> None:
    """Codes and scales are exact in float32; scale * code is, too."""
    weight = random_int8(70, 160)
    assert torch.equal(dequantize(pack_int8(weight), 0, 70, torch.float32), reference.dequantize(weight))
