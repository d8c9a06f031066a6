"""Rows that are looked up in a packed weight are those of the matrix."""

from __future__ import annotations

import functools

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import Int4Weight, Int8Weight, LinearWeight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize_rows
from tests.support.packed_rows import assert_rows, each_dtype, each_weight
from tests.support.planted import assert_notices
from tests.support.weights import permuted, random_int4, random_int8

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.embedding import embedding
from pagewire.gpu_executor.kernels.triton.launches.elementwise import EMBEDDING
from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight
from pagewire.gpu_executor.kernels.triton.products import prepare_weight

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def prepared(weight: LinearWeight) -> PackedWeight:
    packed = prepare_weight(weight, torch.device("cpu"))
    assert isinstance(packed, PackedWeight)
    return packed


@each_dtype
@each_weight
def test_looked_up_rows_are_those_of_the_matrix(weight: LinearWeight, dtype: torch.dtype) -> None:
    ids = torch.tensor([69, 0, 69, 3])
    rows = embedding(ids, prepared(weight), dtype)
    assert rows.dtype == dtype
    assert_notices(functools.partial(assert_rows, dequantize_rows(weight, ids)), rows)


@each_weight
def test_long_rows_take_several_programs(weight: LinearWeight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EMBEDDING[0].constants, "BLOCK_UNITS", 2)
    ids = torch.tensor([5, 69])
    assert_rows(dequantize_rows(weight, ids), embedding(ids, prepared(weight), torch.float32))


@pytest.mark.parametrize("weight", [random_int4(70, 200), random_int8(70, 96, 16)])
def test_columns_go_where_their_channels_belong(weight: Int4Weight | Int8Weight) -> None:
    weight, ids = permuted(weight), torch.tensor([69, 0, 3])
    assert_rows(dequantize_rows(weight, ids), embedding(ids, prepared(weight), torch.float32))


def test_no_tokens_are_no_work() -> None:
    assert embedding(torch.empty(0, dtype=torch.int64), prepared(random_int4(8, 64)), torch.float16).shape == (0, 64)
