"""Each weight goes to the product that is for it, prepared or unpacked; rows of a packed embedding are its rows."""

from __future__ import annotations

import functools

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import DenseWeight, LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference import dequantize as reference
from tests.support.planted import assert_notices
from tests.support.products import assert_product, random_rows
from tests.support.weights import random_dense, random_fp8, random_int4, random_int8

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton import products
from pagewire.gpu_executor.kernels.triton.dequantize import dequantize
from pagewire.gpu_executor.kernels.triton.embedding import embedding
from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight
from pagewire.gpu_executor.kernels.triton.products import multiply, prepare_weight

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CPU = torch.device("cpu")
WEIGHTS = {
    "int4": random_int4(70, 200, has_bias=True),
    "int8": random_int8(70, 160, has_bias=True),
    "int8-half-minimum": random_int8(70, 96, 16, has_minimum=True),
    "fp8-row": random_fp8(70, 150, 1, 150),
    "fp8-tiles": random_fp8(140, 300, 128, 128, has_bias=True),
}
each_weight = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
# A unit in the last place; the interpreter cuts bfloat16 off, and rounds scale * code (up to 45) before it adds minima.
ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ABSOLUTE = {torch.float32: 1e-6, torch.float16: 0.02, torch.bfloat16: 0.02}
each_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def prepared(weight: LinearWeight) -> PackedWeight:
    packed = prepare_weight(weight, CPU)
    assert isinstance(packed, PackedWeight)
    return packed


def assert_rows(expected: torch.Tensor, actual: torch.Tensor) -> None:
    torch.testing.assert_close(actual.float(), expected, rtol=ROUNDING[actual.dtype], atol=ABSOLUTE[actual.dtype])


@each_dtype
@each_weight
def test_looked_up_rows_are_those_of_the_matrix(weight: LinearWeight, dtype: torch.dtype) -> None:
    ids = torch.tensor([69, 0, 69, 3])
    rows = embedding(ids, prepared(weight), dtype)
    assert rows.dtype == dtype
    assert_rows(reference.dequantize_rows(weight, ids), rows)


@each_dtype
@each_weight
def test_unpacked_rows_are_those_of_the_matrix(weight: LinearWeight, dtype: torch.dtype) -> None:
    expected = reference.dequantize(weight)
    for first, last in ((0, weight.out_features), (3, 69)):
        compare = functools.partial(assert_rows, expected[first:last])
        assert_notices(compare, dequantize(prepared(weight), first, last - first, dtype))


def test_float32_rows_have_the_bits_of_the_reference() -> None:
    """Codes and scales are exact in float32; scale * code is, too."""
    weight = WEIGHTS["int8"]
    assert torch.equal(dequantize(prepared(weight), 0, 70, torch.float32), reference.dequantize(weight))


def test_preparing_keeps_what_is_prepared_and_refuses_what_it_does_not_know() -> None:
    packed = prepared(WEIGHTS["int4"])
    assert prepare_weight(packed, CPU) is packed
    assert (packed.out_features, packed.in_features) == (70, 200)
    with pytest.raises(TypeError, match="UnknownWeight"):
        prepare_weight(UnknownWeight(), CPU)
    with pytest.raises(TypeError, match="UnknownWeight was not prepared"):
        multiply(torch.ones(1, 1), UnknownWeight(), is_batch_invariant=False)


class UnknownWeight(LinearWeight):
    out_features = 1
    in_features = 1


def test_bias_of_a_dense_weight_gets_the_dtype_of_the_product() -> None:
    weight = prepare_weight(random_dense(5, 8, torch.float16, has_bias=True), CPU)
    assert isinstance(weight, DenseWeight)
    assert weight.bias is not None
    assert weight.bias.dtype == torch.float16


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_stacked_parts_are_multiplied_side_by_side(is_batch_invariant: bool) -> None:
    weight = StackedWeight((random_int4(40, 96, has_bias=True), random_int8(24, 96, 16), random_dense(8, 96)))
    x = random_rows(5, 96)
    assert_product(multiply(x, prepare_weight(weight, CPU), is_batch_invariant=is_batch_invariant), x, weight)


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_dense_weights_are_multiplied(is_batch_invariant: bool) -> None:
    weight = random_dense(40, 96, has_bias=True)
    x = random_rows(5, 200)[:, ::2][:, :96]  # not even its channels are contiguous
    assert_product(multiply(x, prepare_weight(weight, CPU), is_batch_invariant=is_batch_invariant), x, weight)


@each_weight
def test_large_products_unpack_some_rows_at_a_time(weight: LinearWeight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_UNPACK_ROWS", 4)
    monkeypatch.setattr(products, "_UNPACK_NUMBERS", 30 * weight.in_features)
    monkeypatch.setattr(products, "quantized_matmul", None)
    x = random_rows(5, weight.in_features)
    assert_product(multiply(x, prepared(weight), is_batch_invariant=False), x, weight)


def test_fixed_tiles_take_blocks_of_rows_that_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_int4(20, 64)
    x = random_rows(9, 64)
    whole = multiply(x, prepared(weight), is_batch_invariant=True)
    monkeypatch.setattr(products, "_INVARIANT_BLOCK", 4)
    torch.testing.assert_close(multiply(x, prepared(weight), is_batch_invariant=True), whole)
