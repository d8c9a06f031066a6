"""Each weight goes to the product that is for it: torch's, that of packed weights, or that of fixed tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagewire.gpu_executor.kernels.layouts import (
    DenseWeight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    StackedWeight,
)
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tests.support.products import assert_product, random_rows
from tests.support.weights import permuted, random_dense, random_fp8, random_int4, random_int8

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton import products
from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight
from pagewire.gpu_executor.kernels.triton.products import multiply, prepare_weight

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CPU = torch.device("cpu")


def prepared(weight: LinearWeight) -> PackedWeight:
    packed = prepare_weight(weight, CPU)
    assert isinstance(packed, PackedWeight)
    return packed


def test_preparing_keeps_what_is_prepared_and_refuses_what_it_does_not_know() -> None:
    packed = prepared(random_int4(70, 200, has_bias=True))
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


@pytest.mark.parametrize(
    "weight", [random_int4(70, 200, has_bias=True), random_int8(70, 96, 16), random_fp8(140, 300, 128, 128)]
)
def test_large_products_unpack_some_rows_at_a_time(weight: LinearWeight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "UNPACK_ROWS", 4)
    monkeypatch.setattr(products, "UNPACK_NUMBERS", 30 * weight.in_features)
    monkeypatch.setattr(products, "quantized_matmul", None)
    x = random_rows(5, weight.in_features)
    assert_product(multiply(x, prepared(weight), is_batch_invariant=False), x, weight)


PERMUTED = [permuted(random_int4(40, 200, has_bias=True)), permuted(random_int8(40, 96, 16, has_minimum=True))]


@pytest.mark.parametrize("weight", PERMUTED, ids=["int4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_columns_multiply_the_channels_that_they_are_of(
    weight: Int4Weight | Int8Weight, dtype: torch.dtype, is_batch_invariant: bool
) -> None:
    x = random_rows(5, weight.in_features, dtype)
    assert_product(multiply(x, prepared(weight), is_batch_invariant=is_batch_invariant), x, weight)


@pytest.mark.parametrize("weight", PERMUTED, ids=["int4", "int8"])
def test_large_products_gather_as_small_ones_do(
    weight: Int4Weight | Int8Weight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "UNPACK_ROWS", 4)
    monkeypatch.setattr(products, "UNPACK_NUMBERS", 30 * weight.in_features)
    x = random_rows(5, weight.in_features)
    assert_product(multiply(x, prepared(weight), is_batch_invariant=False), x, weight)


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_parts_in_one_order_gather_once_and_others_not_at_all(is_batch_invariant: bool) -> None:
    weight = StackedWeight(
        (
            permuted(random_int4(20, 96)),
            permuted(random_int8(12, 96)),
            permuted(random_int8(8, 96, 16), seed=1),
            random_int4(4, 96),
            random_dense(4, 96),
        )
    )
    x = random_rows(5, 96)
    stacked = prepare_weight(weight, CPU)
    with GathersCounted() as counted:
        product = multiply(x, stacked, is_batch_invariant=is_batch_invariant)
    assert_product(product, x, weight)
    assert counted.num_gathers == 2


class GathersCounted(TorchDispatchMode):
    """Within it, gathers are counted."""

    num_gathers = 0

    # Whatever torch calls goes through here.
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_gathers += func._schema.name == "aten::index_select"
        return func(*args, **(kwargs or {}))


def test_dense_products_of_parts_are_written_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, dense = random_int4(70, 96, has_bias=True), random_dense(8, 96, has_bias=True)
    weight = StackedWeight((quantized, dense, random_dense(4, 96)))
    stacked = prepare_weight(weight, CPU)
    matrix = dequantize(quantized)
    monkeypatch.setattr(products, "dequantize", lambda _, first, count, dtype: matrix[first : first + count].to(dtype))
    monkeypatch.setattr(products, "UNPACK_ROWS", 4)
    monkeypatch.setattr(products, "UNPACK_NUMBERS", 30 * 96)
    x = random_rows(5, 96)
    with CopiesForbidden():
        product = multiply(x, stacked, is_batch_invariant=False)
    assert_product(product, x, weight)


class CopiesForbidden(TorchDispatchMode):
    """Within it, nothing is copied into a tensor."""

    # Whatever torch calls goes through here.
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name != "aten::copy_"
        return func(*args, **(kwargs or {}))


def test_fixed_tiles_take_blocks_of_rows_that_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_int4(20, 64)
    x = random_rows(9, 64)
    whole = multiply(x, prepared(weight), is_batch_invariant=True)
    monkeypatch.setattr(products, "INVARIANT_BLOCK", 4)
    torch.testing.assert_close(multiply(x, prepared(weight), is_batch_invariant=True), whole)
